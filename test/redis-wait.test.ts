/** Claims that wait for replicas wait together, and only for what they say. */

import assert from 'node:assert/strict'
import { describe, it, type TestContext } from 'node:test'
import { Redis } from 'ioredis'
import { type RedisClient, RedisStore } from '../src/stores/redis/index.ts'
import { ReplicaWait } from '../src/stores/redis/replicas.ts'
import { eventually } from './support/redis/processes.ts'
import { startProxy } from './support/redis/proxy.ts'
import { type RedisServer, startRedis } from './support/redis/servers.ts'
import { request } from './support/requests.ts'
import { until } from './support/stores.ts'

const SAFE = { enableOfflineQueue: false, maxRetriesPerRequest: 0, retryStrategy: () => 20 } as const
const WAIT_MS = 200

/** A master and a replica that has acknowledged a write. */
async function replicated(t: TestContext) {
  const master = await startRedis({ args: ['--repl-diskless-sync-delay', '0'] })
  const replica = await startRedis({ args: ['--replicaof', master.host, String(master.port)] })
  t.after(async () => {
    await replica.stop()
    await master.stop()
  })
  await eventually('the replica is in step', async () => {
    await master.cli('SET', 'filler', 1)
    return /slave0:.*state=online,offset=[1-9]/.test(await master.cli('INFO', 'replication'))
  })
  return { master, replica }
}

async function storeOn(t: TestContext, url: string) {
  const store = new RedisStore({ url, waitReplicas: 1, waitTimeoutMs: WAIT_MS })
  t.after(() => store.close())
  await store.check()
  return store
}

function connectTo(t: TestContext, url: string, options: object = {}): Redis {
  const client = new Redis(url, { ...SAFE, ...options })
  client.on('error', () => {})
  t.after(() => client.disconnect())
  return client
}

async function callsOf(server: RedisServer, command: string): Promise<number> {
  const stats = await server.cli('INFO', 'commandstats')
  return Number(new RegExp(`cmdstat_${command}:calls=(\\d+)`).exec(stats)?.[1] ?? 0)
}

describe('waitReplicas', { concurrency: 2 }, () => {
  it('a hundred claims that come together take one WAIT, and all are on the replica', async (t) => {
    const { master, replica } = await replicated(t)
    const store = await storeOn(t, master.url)
    const requests = Array.from({ length: 100 }, () => request())
    const results = await Promise.all(requests.map((each) => store.claim(each)))
    assert.ok(results.every(({ outcome }) => outcome === 'claimed'))
    assert.equal(await callsOf(master, 'wait'), 1)
    const found = await replica.cli('EXISTS', ...requests.map(({ scopedKey }) => scopedKey))
    assert.equal(found, '100')
  })

  it('behind a replica that has stopped a hundred claims wait as long as one, and are given back', async (t) => {
    const { master, replica } = await replicated(t)
    const store = await storeOn(t, master.url)
    await replica.pause()
    const first = Promise.allSettled([store.claim(request())])
    await until('it waits', async () => /blocked_clients:1/.test(await master.cli('INFO', 'clients')))
    const startedAt = performance.now()
    const late = await Promise.allSettled(Array.from({ length: 100 }, () => store.claim(request())))
    const ms = performance.now() - startedAt
    for (const result of [...(await first), ...late]) {
      assert.match(String(result.status === 'rejected' && result.reason), /only 0 of 1 replicas have the record/)
    }
    assert.equal(await callsOf(master, 'wait'), 2)
    assert.ok(ms < 10 * WAIT_MS, `${ms} ms`)
    await until('they are given back', async () => (await master.cli('DBSIZE')) === '1')
    replica.resume()
    assert.equal((await store.claim(request())).outcome, 'claimed')
  })

  it('a record that is gone, or another, is not confirmed; those beside it are', async (t) => {
    const { master } = await replicated(t)
    const client = connectTo(t, master.url)
    await until('ready', () => client.status === 'ready')
    const wait = new ReplicaWait(client as unknown as RedisClient, { replicas: 1, timeoutMs: WAIT_MS })
    await client.set('here', '1|p|mine|1|30000|60000|f\n', 'PX', 60_000)
    await client.set('theirs', '1|p|theirs|1|30000|60000|f\n', 'PX', 60_000)
    const confirm = (key: string, states: string) => wait.confirm({ key, token: 'mine', states })
    const asked = [confirm('here', 'p'), confirm('gone', 'p'), confirm('theirs', 'p'), confirm('here', 'cz')]
    const results = await Promise.allSettled(asked)
    assert.deepEqual(
      results.map(({ status }) => status),
      ['fulfilled', 'rejected', 'rejected', 'rejected'],
    )
  })

  it('what is confirmed is written on the connection that waits, and lives as long as before', async (t) => {
    const { master, replica } = await replicated(t)
    const writer = connectTo(t, master.url)
    const waiter = connectTo(t, master.url)
    await until('ready', () => writer.status === 'ready' && waiter.status === 'ready')
    await writer.set('key', '1|p|mine|1|30000|60000|f\n', 'PX', 60_000)
    const expiresAt = await master.cli('PEXPIRETIME', 'key')
    const offset = async () => Number(/master_repl_offset:(\d+)/.exec(await master.cli('INFO', 'replication'))?.[1])
    const before = await offset()
    const wait = new ReplicaWait(waiter as unknown as RedisClient, { replicas: 1, timeoutMs: WAIT_MS })
    const written = { key: 'key', token: 'mine', states: 'p' }
    await wait.confirm(written)
    assert.ok((await offset()) > before, 'nothing was written: from Redis 7.2 on its WAIT would say yes at once')
    assert.equal(await master.cli('PEXPIRETIME', 'key'), expiresAt)
    await replica.pause()
    await assert.rejects(wait.confirm(written), /only 0 of 1/)
  })

  it('an answer that never comes does not hold up the claims behind it', async (t) => {
    const { master } = await replicated(t)
    const proxy = await startProxy(master)
    t.after(() => proxy.stop())
    // With this ioredis never settles what was under way when its connection broke.
    const client = connectTo(t, proxy.url, { autoResendUnfulfilledCommands: false, maxRetriesPerRequest: null })
    await until('ready', () => client.status === 'ready')
    const wait = new ReplicaWait(client as unknown as RedisClient, { replicas: 1, timeoutMs: WAIT_MS })
    await client.set('key', '1|p|mine|1|30000|60000|f\n', 'PX', 60_000)
    proxy.blackhole()
    let isSettled = false
    const written = { key: 'key', token: 'mine', states: 'p' }
    void wait.confirm(written).then(
      () => (isSettled = true),
      () => (isSettled = true),
    )
    await until('it is sent', () => proxy.counters.droppedRequests > 0)
    proxy.pass()
    await until('the client is back', () => proxy.counters.connections === 2 && client.status === 'ready')
    await wait.confirm(written)
    assert.equal(isSettled, false, 'the first one was settled: nothing is shown')
  })
})
