/** The Redis topologies and the proxy that the tests of the Redis store stand on do what they say. */

import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { connect } from 'node:net'
import { describe, type TestContext, test } from 'node:test'
import * as ioredis from 'ioredis'
import * as ioredis5 from 'ioredis5'
import { startCluster } from './support/redis/cluster.ts'
import { eventually } from './support/redis/processes.ts'
import { type RedisProxy, startProxy } from './support/redis/proxy.ts'
import { startSentinel } from './support/redis/sentinel.ts'
import { type RedisOptions, type RedisServer, startRedis } from './support/redis/servers.ts'
import { until } from './support/stores.ts'

/** The constructors of the two majors are of different types. */
const MAJORS = [
  {
    major: 6,
    redis: (options: Omit<ioredis.RedisOptions, 'replyMapping'>) => new ioredis.Redis(options),
    cluster: (nodes: ioredis.ClusterNode[], options: object) => new ioredis.Cluster(nodes, options),
  },
  {
    major: 5,
    redis: (options: ioredis5.RedisOptions) => new ioredis5.Redis(options),
    cluster: (nodes: ioredis5.ClusterNode[], options: object) => new ioredis5.Cluster(nodes, options),
  },
] as const

/** Fails at once instead of retrying, and gives up on a silent server. */
const IMPATIENT = {
  maxRetriesPerRequest: 0,
  enableOfflineQueue: false,
  commandTimeout: 300,
  retryStrategy: () => 20,
} as const

async function server(t: TestContext, options: RedisOptions = {}): Promise<RedisServer> {
  const redis = await startRedis(options)
  t.after(() => redis.stop())
  return redis
}

/** A client that fails fast, ready. */
async function clientOf(t: TestContext, { port }: { readonly port: number }, commandTimeout = 5_000) {
  const client = new ioredis.Redis({ port, ...IMPATIENT, commandTimeout })
  t.after(() => client.disconnect())
  client.on('error', () => {})
  await once(client, 'ready')
  return client
}

async function proxied(t: TestContext) {
  const redis = await server(t)
  const proxy = await startProxy(redis)
  t.after(() => proxy.stop())
  return { redis, proxy }
}

/** What all clients have in common, of both majors and of clusters too. */
interface Client {
  set(key: string, value: string): Promise<unknown>
  on(event: 'error', listener: () => void): unknown
  disconnect(): void
}

/** Resolves when the client has written. */
async function writes(t: TestContext, client: Client, key: string): Promise<void> {
  t.after(() => client.disconnect())
  client.on('error', () => {})
  const hasWritten = () =>
    client.set(key, 'after').then(
      () => true,
      () => false,
    )
  await eventually('a write to succeed', hasWritten)
}

describe('Redis for tests', { concurrency: true }, () => {
  test('a single server starts empty, refuses unknown commands, and is gone with its folder', async () => {
    const redis = await startRedis({})
    assert.equal(await redis.cli('dbsize'), '0')
    assert.equal(await redis.cli('config', 'get', 'appendonly'), 'appendonly\nno')
    await assert.rejects(redis.cli('nonsense'), /unknown command/)
    await redis.stop()
    assert.ok(!existsSync(redis.dir))
    await assert.rejects(redis.cli('ping'))
  })

  test('a killed server comes back on its port, with its data only when it has an append-only file', async (t) => {
    const servers = await Promise.all([server(t), server(t, { aof: 'always' })])
    const left = await Promise.all(servers.map(leftAfterCrash))
    assert.deepEqual(left, ['', 'v'])
  })

  test('a paused server keeps its connections and answers once it is resumed', async (t) => {
    const redis = await server(t)
    const client = await clientOf(t, redis)
    await redis.pause()
    let answered = false
    const set = client.set('k', 'v').finally(() => {
      answered = true
    })
    await assert.rejects((await clientOfSilent(t, redis)).ping(), /timed out/)
    assert.ok(!answered)
    redis.resume()
    assert.equal(await set, 'OK')
  })

  test('arguments win over the defaults, and wrong ones are told', async (t) => {
    const redis = await server(t, { args: ['--maxmemory-policy', 'allkeys-lru'] })
    assert.match(await redis.cli('config', 'get', 'maxmemory-policy'), /allkeys-lru/)
    await assert.rejects(startRedis({ args: ['--no-such-setting', '1'] }), /no-such-setting/)
  })

  test('REDIS_URL is handed out only to those who do not ask for a server of their own', async (t) => {
    const redis = await server(t)
    const before = process.env['REDIS_URL']
    process.env['REDIS_URL'] = redis.url
    const [shared, own] = await Promise.all([startRedis(), startRedis({})]).finally(() => {
      if (before === undefined) delete process.env['REDIS_URL']
      else process.env['REDIS_URL'] = before
    })
    t.after(() => own.stop())
    assert.equal(shared.port, redis.port)
    assert.notEqual(own.port, redis.port)
    await shared.stop()
    assert.equal(await redis.cli('ping'), 'PONG')
  })

  test('Sentinel promotes a replica of a killed master', async (t) => {
    const topology = await startSentinel()
    t.after(() => topology.stop())
    const { name, sentinels, servers } = topology
    const master = await topology.master()
    assert.equal(master, servers[0])
    assert.deepEqual(await topology.replicas(), servers.slice(1))
    await master.kill()
    const options = { ...IMPATIENT, name, sentinels: [...sentinels], sentinelRetryStrategy: () => 50 }
    await Promise.all(MAJORS.map(({ redis, major }) => writes(t, redis(options), `k${major}`)))
    await eventually('the Sentinels to name the new master', async () => (await topology.master()) !== master)
  })

  test('Cluster promotes the replica of a killed master', async (t) => {
    const topology = await startCluster()
    t.after(() => topology.stop())
    const { servers, nodes } = topology
    const master = await topology.masterOf('k')
    const followers = await topology.replicasOf(master)
    assert.deepEqual(followers, [servers[servers.indexOf(master) + 3]])
    await master.kill()
    const options = { redisOptions: { commandTimeout: 300 }, clusterRetryStrategy: () => 50, slotsRefreshTimeout: 500 }
    await Promise.all(MAJORS.map(({ cluster }) => writes(t, cluster([...nodes], options), 'k')))
    assert.equal(await topology.masterOf('k'), followers[0])
    assert.equal(await followers[0]?.cli('get', 'k'), 'after')
  })

  for (const end of ["process.kill(process.pid, 'SIGKILL')", "throw new Error('crash')", 'process.exit()', '']) {
    test(`nothing is left of a test process that ends by ${end || 'itself, with a server still running'}`, async () => {
      const { port, dir } = await leftBehind(end)
      await until('the server to be gone', async () => !(await isListening(port)))
      await until('the folder to be gone', () => !existsSync(dir))
    })
  }
})

describe('the proxy in front of Redis', { concurrency: true }, () => {
  test('passes everything, binary and in pieces', async (t) => {
    const { redis, proxy } = await proxied(t)
    const client = await clientOf(t, proxy)
    const big = Buffer.alloc(300_000, '\r\n\0$5\r\n')
    await client.set('k', big)
    assert.deepEqual(await client.getBuffer('k'), big)
    assert.equal(await redis.cli('strlen', 'k'), String(big.length))
    assert.deepEqual(proxy.counters, {
      connections: 1,
      resets: 0,
      lostReplies: 0,
      droppedRequests: 0,
      delayedReplies: 0,
    })
  })

  test('resets the client after the server has done the work, as often as told', async (t) => {
    const { redis, proxy } = await proxied(t)
    const client = await clientOf(t, proxy)
    proxy.resetAfterApply(2)
    for (const count of ['1', '2']) {
      await assert.rejects(client.incr('n'))
      assert.equal(await redis.cli('get', 'n'), count)
      await until('the client to be back', () => client.status === 'ready')
    }
    assert.equal(await client.incr('n'), 3)
    assert.deepEqual([proxy.counters.resets, proxy.counters.lostReplies], [2, 2])
  })

  test('loses the replies of one command only, and carries out what was pipelined after it', async (t) => {
    const { redis, proxy } = await proxied(t)
    const client = await clientOf(t, proxy)
    proxy.resetAfterApply(1, /^SET$/)
    const sent = [client.incr('n'), client.set('k', 'v'), client.incr('n')]
    const results = await Promise.allSettled(sent)
    assert.deepEqual(
      results.map(({ status }) => status),
      ['fulfilled', 'rejected', 'rejected'],
    )
    await until('the last command to be done', async () => (await redis.cli('get', 'n')) === '2')
    assert.equal(await redis.cli('get', 'k'), 'v')
    assert.deepEqual([proxy.counters.resets, proxy.counters.lostReplies], [1, 2])
  })

  for (const { redis, major } of MAJORS) {
    test(`makes a default client of ioredis ${major} tell the winner that it lost`, async (t) => {
      const { proxy } = await proxied(t)
      const client = redis({ port: proxy.port })
      t.after(() => client.disconnect())
      client.on('error', () => {})
      await once(client, 'ready')
      proxy.resetAfterApply(1)
      assert.equal(await client.set('k', 'v', 'NX'), null)
      assert.equal(proxy.counters.resets, 1)
    })
  }

  test('is a black hole until it passes again', async (t) => {
    const { redis, proxy } = await proxied(t)
    const client = await clientOf(t, proxy, 300)
    proxy.blackhole()
    await assert.rejects(client.set('k', 'v'), /timed out/)
    assert.equal(proxy.counters.droppedRequests, 1)
    proxy.pass()
    await until('the client to be back', () => works(client, proxy))
    assert.equal(await redis.cli('exists', 'k'), '0')
  })

  test('holds replies back, in their order', async (t) => {
    const { redis, proxy } = await proxied(t)
    const client = await clientOf(t, proxy)
    proxy.delay(150)
    const start = performance.now()
    const late = client.incr('n')
    await until('the reply to be held', () => proxy.counters.delayedReplies === 1)
    assert.equal(await redis.cli('get', 'n'), '1')
    proxy.pass()
    assert.deepEqual(await Promise.all([late, client.incr('n')]), [1, 2])
    assert.ok(performance.now() - start >= 150)
  })

  test('refuses connections and listens on the same port again', async (t) => {
    const { proxy } = await proxied(t)
    const client = await clientOf(t, proxy)
    await proxy.refuse()
    assert.ok(!(await isListening(proxy.port)))
    await assert.rejects(client.ping())
    await proxy.reopen()
    await until('the client to be back', () => works(client, proxy))
  })

  test('hands a dead server on as a reset', async (t) => {
    const { redis, proxy } = await proxied(t)
    const client = await clientOf(t, proxy)
    await redis.kill()
    await assert.rejects(client.ping())
    await redis.restart()
    await until('the client to be back', () => works(client, proxy))
  })
})

/** The value of a key that was written before a kill and a restart. */
async function leftAfterCrash(redis: RedisServer): Promise<string> {
  const { pid } = redis
  await redis.cli('set', 'k', 'v')
  await redis.kill()
  assert.throws(() => redis.pid, /not running/)
  await assert.rejects(redis.cli('ping'))
  await redis.restart()
  assert.notEqual(redis.pid, pid)
  return redis.cli('get', 'k')
}

/** The kernel accepts connections for a process that stands still. */
async function clientOfSilent(t: TestContext, { port }: RedisServer) {
  const client = new ioredis.Redis({ port, ...IMPATIENT, enableReadyCheck: false, enableOfflineQueue: true })
  t.after(() => client.disconnect())
  client.on('error', () => {})
  return client
}

async function works(client: ioredis.Redis, { openConnections }: RedisProxy): Promise<boolean> {
  const answer = await client.ping().catch(() => undefined)
  return answer === 'PONG' && openConnections === 1
}

async function isListening(port: number): Promise<boolean> {
  const socket = connect(port, '127.0.0.1')
  try {
    await once(socket, 'connect')
    return true
  } catch {
    return false
  } finally {
    socket.destroy()
  }
}

/** Starts a server in a process of its own, which then ends as `end` says. */
async function leftBehind(end: string): Promise<{ port: number; dir: string }> {
  const module = new URL('./support/redis/servers.ts', import.meta.url).href
  const code = `
    import { writeSync } from 'node:fs'
    import { startRedis } from '${module}'
    const { port, dir } = await startRedis({})
    writeSync(1, JSON.stringify({ port, dir }))
    ${end}`
  const child = spawn(process.execPath, ['--import', 'tsx', '--input-type=module', '-e', code], {
    stdio: ['ignore', 'pipe', 'ignore'],
  })
  let printed = ''
  child.stdout.setEncoding('utf8').on('data', (text) => {
    printed += text
  })
  await once(child, 'close')
  return JSON.parse(printed)
}
