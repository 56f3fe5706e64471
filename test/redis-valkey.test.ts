/** The Redis store on Valkey: the laws of a store, and what depends on the version of the server. */

import assert from 'node:assert/strict'
import { after, before, describe, it, type TestContext } from 'node:test'
import { Redis } from 'ioredis'
import type { StoredResponse } from '../src/response.ts'
import type { IdempotencyStore } from '../src/store.ts'
import { type RedisClient, RedisStore, type RedisStoreOptions } from '../src/stores/redis/index.ts'
import { ReplicaWait } from '../src/stores/redis/replicas.ts'
import { storeConformance } from '../src/testing/store-conformance.ts'
import { useValkey } from './support/redis/binaries.ts'
import { startCluster } from './support/redis/cluster.ts'
import { eventually } from './support/redis/processes.ts'
import { startSentinel } from './support/redis/sentinel.ts'
import { infoField, type RedisOptions, type RedisServer, startRedis } from './support/redis/servers.ts'
import { request } from './support/requests.ts'
import { until } from './support/stores.ts'

const WAIT_MS = 200
const PAID: StoredResponse = { statusCode: 201, headers: {}, body: 'paid', replayable: true }
const SYNC_AT_ONCE = ['--repl-diskless-sync-delay', '0']

async function start(t: TestContext, options: RedisOptions): Promise<RedisServer> {
  const server = await startRedis(options)
  t.after(() => server.stop())
  return server
}

/** A master and a replica that has acknowledged a write. */
async function startReplicated(t: TestContext) {
  const master = await start(t, { args: SYNC_AT_ONCE })
  const replica = await start(t, { args: ['--replicaof', master.host, String(master.port)] })
  await eventually('the replica is in step', async () => {
    await master.cli('SET', 'filler', 1)
    return /slave0:.*state=online,offset=[1-9]/.test(await master.cli('INFO', 'replication'))
  })
  return { master, replica }
}

async function openStore(t: TestContext, options: RedisStoreOptions): Promise<RedisStore> {
  const store = new RedisStore(options)
  t.after(() => store.close())
  await store.check()
  return store
}

async function connectTo(t: TestContext, url: string): Promise<Redis> {
  const client = new Redis(url)
  t.after(() => client.disconnect())
  await client.ping()
  return client
}

/** A client whose server calls itself Redis 6.2. */
async function connectToOld(t: TestContext, url: string): Promise<Redis> {
  const client = await connectTo(t, url)
  const info = client.info.bind(client)
  const told = async (...sections: string[]) => (await info(...sections)).replace(/(redis_version):.*/, '$1:6.2.14')
  client.info = told as typeof client.info
  return client
}

async function claim(store: IdempotencyStore, asked = request()) {
  const result = await store.claim(asked)
  assert.ok(result.outcome === 'claimed', 'not claimed')
  return result.claim
}

async function assertPaidOnce(store: IdempotencyStore): Promise<void> {
  const owned = await claim(store)
  assert.equal(await store.complete(owned, PAID, 60_000), true)
  const replay = await store.claim(request(owned.scopedKey))
  assert.ok(replay.outcome === 'exists' && replay.record.response?.body === 'paid', 'not replayed')
}

/** How often the server has run a command so far. */
async function callsOf(server: RedisServer, command: string): Promise<number> {
  const stats = await server.cli('INFO', 'commandstats')
  return Number(new RegExp(`cmdstat_${command}:calls=(\\d+)`).exec(stats)?.[1] ?? 0)
}

describe('Valkey', () => {
  let valkey: RedisServer
  before(async () => {
    await useValkey()
    valkey = await startRedis({})
    assert.ok(infoField(await valkey.cli('INFO', 'server'), 'valkey_version'), 'what was started is not Valkey')
  })
  after(() => valkey?.stop())

  storeConformance(
    async () => {
      const store = new RedisStore({ url: valkey.url })
      await store.check()
      return store
    },
    {
      writeUnknownVersion: async (scopedKey) => {
        await valkey.cli('SET', scopedKey, '2|p|whatever comes\n', 'PX', 60_000)
      },
    },
  )

  it('a new claim and a replay are one SET each, without a script', async (t) => {
    const server = await start(t, {})
    const store = await openStore(t, { url: server.url })
    const owned = await claim(store)
    assert.equal(await callsOf(server, 'set'), 1)
    assert.equal((await callsOf(server, 'eval')) + (await callsOf(server, 'evalsha')), 0, 'a script has claimed')
    await store.complete(owned, PAID, 60_000)
    const scripts = (await callsOf(server, 'eval')) + (await callsOf(server, 'evalsha'))
    assert.equal((await store.claim(request(owned.scopedKey))).outcome, 'exists')
    assert.equal((await callsOf(server, 'eval')) + (await callsOf(server, 'evalsha')), scripts, 'a script has replayed')
  })

  it('the start-up check warns of eviction, of no append-only file and of replicas that nothing waits for', async (t) => {
    const { master } = await startReplicated(t)
    await master.cli('CONFIG', 'SET', 'maxmemory-policy', 'allkeys-lru')
    const store = await openStore(t, { url: master.url })
    const warnings = (await store.check()).join('\n')
    for (const setting of ['maxmemory-policy allkeys-lru', 'no append-only file', 'waitReplicas is 0']) {
      assert.match(warnings, new RegExp(setting))
    }
    assert.match(warnings, /min-replicas-to-write 0/)
  })

  it('the start-up check of a Redis before 7 warns that min-replicas-to-write does not stop scripts', async (t) => {
    const { master } = await startReplicated(t)
    await master.cli('CONFIG', 'SET', 'min-replicas-to-write', 1)
    const [old, present] = [await connectToOld(t, master.url), await connectTo(t, master.url)]
    const warningsOf = async (client: Redis, waitReplicas: number) => {
      const store = await openStore(t, { client: client as unknown as RedisClient, waitReplicas })
      return (await store.check()).join('\n')
    }
    assert.match(await warningsOf(old, 0), /does not apply min-replicas-to-write to scripts/)
    assert.doesNotMatch(await warningsOf(old, 1), /min-replicas-to-write/)
    assert.doesNotMatch(await warningsOf(present, 0), /min-replicas-to-write/)
    await master.cli('CONFIG', 'SET', 'min-replicas-to-write', 0)
    assert.doesNotMatch(await warningsOf(old, 1), /min-replicas-to-write/, 'advice that would change nothing')
    assert.match(await warningsOf(present, 1), /min-replicas-to-write 0/)
  })

  it('the start-up check has nothing to say about a server with an append-only file, even strictly', async (t) => {
    const server = await start(t, { aof: 'always' })
    const store = await openStore(t, { url: server.url, strict: true })
    assert.deepEqual(await store.check(), [])
  })

  it('a claim that waits for a replica is on it, and is given back when the replica has stopped', async (t) => {
    const { master, replica } = await startReplicated(t)
    const store = await openStore(t, { url: master.url, waitReplicas: 1, waitTimeoutMs: WAIT_MS })
    const { scopedKey } = await claim(store)
    assert.equal(await replica.cli('EXISTS', scopedKey), '1')
    await replica.pause()
    const late = request()
    await assert.rejects(store.claim(late), /only 0 of 1 replicas have the record/)
    await until('it is given back', async () => (await master.cli('EXISTS', late.scopedKey)) === '0')
  })

  it('a connection that has written nothing yet does not confirm what a stopped replica has not got', async (t) => {
    const { master, replica } = await startReplicated(t)
    const client = await connectTo(t, master.url)
    const wait = new ReplicaWait(client as unknown as RedisClient, { replicas: 1, timeoutMs: WAIT_MS })
    await replica.pause()
    await master.cli('SET', 'key', '1|p|mine|1|30000|60000|f\n', 'PX', 60_000)
    await assert.rejects(wait.confirm({ key: 'key', token: 'mine', states: 'p' }), /only 0 of 1/)
  })

  it('scripts survive SCRIPT FLUSH, many at once', async (t) => {
    const store = await openStore(t, { url: valkey.url })
    for (let round = 0; round < 5; round++) {
      const claims = await Promise.all(Array.from({ length: 10 }, () => claim(store)))
      await valkey.cli('SCRIPT', 'FLUSH')
      const renewed = await Promise.all(claims.map((owned) => store.renew(owned, 1_000)))
      assert.ok(renewed.every(Boolean), 'a claim was lost with the scripts')
    }
  })

  it('memory, evictions and load are told for the metrics', async (t) => {
    const server = await start(t, { args: ['--maxmemory', '64mb'] })
    const { figures } = await openStore(t, { url: server.url })
    const told = (await figures.read?.()) ?? {}
    assert.equal(told['redis_maxmemory_bytes'], 64 * 1_048_576)
    assert.ok(Number(told['redis_used_memory_rss_bytes']) > 1_000_000, JSON.stringify(told))
    assert.deepEqual(
      figures.list.map(({ name }) => name).filter((name) => !Number.isFinite(told[name])),
      [],
      'figures that are missing',
    )
  })

  it('a Cluster pays once, on each of its masters', async (t) => {
    const cluster = await startCluster({ masters: 3, replicas: 0 })
    t.after(() => cluster.stop())
    const store = await openStore(t, { nodes: cluster.nodes })
    await Promise.all(Array.from({ length: 60 }, () => assertPaidOnce(store)))
    const sizes = await Promise.all(cluster.servers.map((server) => server.cli('DBSIZE')))
    assert.ok(!sizes.includes('0'), `keys on the masters: ${sizes}`)
  })

  it('Sentinel names the new master after a failover, and the store goes there', async (t) => {
    const topology = await startSentinel()
    t.after(() => topology.stop())
    const { sentinels, name } = topology
    const store = await openStore(t, { sentinels: [...sentinels], name })
    await assertPaidOnce(store)
    const master = await topology.master()
    await master.kill()
    await eventually('a claim after the failover', () =>
      assertPaidOnce(store).then(
        () => true,
        () => false,
      ),
    )
    assert.notEqual(await topology.master(), master)
  })
})
