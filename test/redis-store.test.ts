/** The laws of a store on a real Redis, single and Cluster, with both majors of ioredis. */

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { after, before, describe, it } from 'node:test'
import { Cluster, Redis } from 'ioredis'
import { Cluster as Cluster5, Redis as Redis5 } from 'ioredis5'
import { Registry } from 'prom-client'
import { type RedisClient, RedisStore, type RedisStoreSettings } from '../src/stores/redis/index.ts'
import { storeConformance } from '../src/testing/store-conformance.ts'
import { createApp, post } from './support/app.ts'
import { type ClusterTopology, startCluster } from './support/redis/cluster.ts'
import { type RedisEndpoint, startRedis } from './support/redis/servers.ts'
import { request } from './support/requests.ts'
import { until } from './support/stores.ts'

const SAFE = { enableOfflineQueue: false, maxRetriesPerRequest: 0, enableAutoPipelining: true } as const
const keyPrefix = `${randomUUID()}:`

/** A store on a client that the test hands over, ready, and closed with the store. */
async function storeOn(client: RedisClient, settings: RedisStoreSettings = {}): Promise<RedisStore> {
  const store = new RedisStore({ client, keyPrefix, ...settings })
  await store.check()
  store.close = async () => client.disconnect()
  return store
}

describe('Redis, single', () => {
  let redis: RedisEndpoint
  before(async () => {
    redis = await startRedis()
  })
  after(() => redis.stop())

  const writeUnknownVersion = async (scopedKey: string) => {
    await redis.cli('SET', keyPrefix + scopedKey, '2|p|whatever comes\n', 'PX', 60_000)
  }

  describe('built by the store from a url', () => {
    const factory = async () => {
      const store = new RedisStore({ url: redis.url, keyPrefix })
      await store.check()
      return store
    }
    storeConformance(factory, { writeUnknownVersion })
  })

  describe('ioredis 5, handed over, bodies deflated', () => {
    storeConformance(() => storeOn(new Redis5(redis.url, SAFE), { deflateFrom: 1 }), { writeUnknownVersion })
  })

  describe('by scripts alone, as on Redis 6.2', () => {
    const oldServer = async () => {
      const client = new Redis(redis.url, SAFE)
      await once(client, 'ready') // ioredis itself asks for INFO until then
      client.info = (async () => 'redis_version:6.2.14\r\n') as typeof client.info
      return storeOn(client)
    }
    storeConformance(oldServer, { writeUnknownVersion })

    it('sends no SET NX GET', async () => {
      const store = await oldServer()
      const before = await redis.cli('INFO', 'commandstats')
      await store.claim(request(randomUUID()))
      const stats = await redis.cli('INFO', 'commandstats')
      const calls = (text: string, command: string) =>
        Number(/calls=(\d+)/.exec(text.split(`cmdstat_${command}:`)[1] ?? '')?.[1] ?? 0)
      assert.equal(
        calls(stats, 'evalsha') + calls(stats, 'eval') > calls(before, 'evalsha') + calls(before, 'eval'),
        true,
      )
      await store.close()
    })
  })

  it('a new claim and a replay are one SET each, and a completion is one script', async (t) => {
    const client = new Redis(redis.url, { ...SAFE, enableAutoPipelining: false })
    t.after(() => client.disconnect())
    const store = await storeOn(client)
    const sent: string[] = []
    const send = client.sendCommand.bind(client)
    client.sendCommand = ((command: { name: string }) => {
      sent.push(command.name)
      return send(command as never)
    }) as typeof client.sendCommand
    const key = randomUUID()
    const result = await store.claim(request(key))
    assert.ok(result.outcome === 'claimed')
    await store.complete(result.claim, { statusCode: 200, headers: {}, body: 'paid', replayable: true }, 60_000)
    assert.equal((await store.claim(request(key))).outcome, 'exists')
    assert.deepEqual(
      sent.map((name) => name.replace(/^eval$/, 'evalsha')),
      ['set', 'evalsha', 'set'],
    )
    await store.close()
  })

  it('the lease of a pending record is told by its PTTL: what other requests read is what is left', async (t) => {
    const store = await storeOn(new Redis(redis.url, SAFE))
    t.after(() => store.close())
    const key = randomUUID()
    await store.claim({ ...request(key), leaseMs: 10_000, ttlMs: 20_000 })
    await redis.cli('PEXPIRE', keyPrefix + key, 13_000) // as if 7 s had passed by Redis's clock
    const left = (await store.read(key))?.leaseRemainingMs ?? 0
    assert.ok(left > 2_900 && left <= 3_000, String(left))
    await redis.cli('PEXPIRE', keyPrefix + key, 9_000)
    const takeover = await store.claim(request(key))
    assert.ok(takeover.outcome === 'claimed' && takeover.takenOver === 'expired' && takeover.claim.fence === 2)
    await store.close()
  })

  it('deflates what gets smaller by it, and reads both kinds', async (t) => {
    const store = await storeOn(new Redis(redis.url, SAFE), { deflateFrom: 500 })
    t.after(() => store.close())
    const sizes: number[] = []
    for (const body of ['x'.repeat(400), 'x'.repeat(50_000), Buffer.from(randomUUID().repeat(20))]) {
      const key = randomUUID()
      const result = await store.claim(request(key))
      assert.ok(result.outcome === 'claimed')
      await store.complete(result.claim, { statusCode: 200, headers: {}, body, replayable: true }, 60_000)
      sizes.push(Number(await redis.cli('STRLEN', keyPrefix + key)))
      assert.deepEqual((await store.read(key))?.response?.body, body)
    }
    assert.ok((sizes[0] ?? 0) > 400 && (sizes[1] ?? 0) < 1_000, String(sizes))
    await store.close()
  })

  it('scripts survive SCRIPT FLUSH, alone and in a pipeline', async (t) => {
    const store = await storeOn(new Redis(redis.url, SAFE))
    t.after(() => store.close())
    for (let round = 0; round < 20; round++) {
      const claims = await Promise.all(Array.from({ length: 10 }, () => store.claim(request(randomUUID()))))
      await redis.cli('SCRIPT', 'FLUSH')
      const renewed = await Promise.all(
        claims.map((result) => store.renew(result.outcome === 'claimed' ? result.claim : assert.fail(), 1_000)),
      )
      assert.ok(renewed.every(Boolean))
    }
    await store.close()
  })

  it("two stores on one client do not get in each other's way", async (t) => {
    const client = new Redis(redis.url, SAFE)
    t.after(() => client.disconnect())
    const [one, other] = [await storeOn(client), await storeOn(client, { keyPrefix: `${keyPrefix}other:` })]
    const key = randomUUID()
    assert.equal((await one.claim(request(key))).outcome, 'claimed')
    assert.equal((await other.claim(request(key))).outcome, 'claimed')
    await one.close()
  })

  it('a client that was handed over stays open when the store closes', async () => {
    const client = new Redis(redis.url, SAFE)
    const store = new RedisStore({ client })
    await store.check()
    await store.close()
    assert.equal(await client.ping(), 'PONG')
    client.disconnect()
  })

  for (const option of ['waitReplicas', 'waitTimeoutMs']) {
    it(`a wrong ${option} is an error that names it`, () => {
      const client = new Redis(redis.url, { lazyConnect: true })
      for (const value of [-1, 1.5, '1']) {
        assert.throws(
          () => new RedisStore({ client, [option]: value as never }),
          new RegExp(`option "${option}" takes`),
        )
      }
    })
  }

  it('memory, evictions and load are in the metrics, with one INFO for each scrape', async (t) => {
    const registry = new Registry()
    const client = new Redis(redis.url, SAFE)
    t.after(() => client.disconnect())
    const app = await createApp(t, { store: new RedisStore({ client, keyPrefix }), metrics: registry })
    app.post('/pay', async () => 'paid')
    await post(app, '/pay', randomUUID())
    let infos = 0
    const info = client.info.bind(client)
    client.info = ((...sections: string[]) => {
      infos++
      return info(...sections)
    }) as typeof client.info
    const text = await registry.metrics()
    assert.equal(infos, 1)
    assert.match(text, /redis_used_memory_rss_bytes\{store="redis"\} [1-9]/)
    for (const name of ['redis_evicted_keys_total', 'redis_maxmemory_bytes', 'redis_instantaneous_ops_per_sec']) {
      assert.match(text, new RegExp(`^${name}\\{store="redis"\\} \\d`, 'm'))
    }
  })
})

describe('Redis Cluster, 3 masters', () => {
  let cluster: ClusterTopology
  before(async () => {
    cluster = await startCluster({ masters: 3, replicas: 0 })
  })
  after(() => cluster.stop())

  const options = { enableOfflineQueue: false, enableAutoPipelining: true, redisOptions: SAFE }

  describe('built by the store from nodes', () => {
    storeConformance(async () => {
      const store = new RedisStore({ nodes: cluster.nodes, keyPrefix })
      await store.check()
      return store
    })
  })

  for (const [major, make] of [
    ['5', () => new Cluster5([...cluster.nodes], options)],
    ['6', () => new Cluster([...cluster.nodes], options)],
  ] as const) {
    it(`ioredis ${major}: keys of all slots are claimed, completed and replayed in parallel`, async (t) => {
      const store = await storeOn(make())
      t.after(() => store.close())
      const keys = Array.from({ length: 300 }, () => randomUUID() as string)
      const claims = await Promise.all(keys.map((key) => store.claim(request(key))))
      const response = { statusCode: 200, headers: {}, body: 'paid', replayable: true }
      const done = await Promise.all(
        claims.map((result) =>
          store.complete(result.outcome === 'claimed' ? result.claim : assert.fail(), response, 60_000),
        ),
      )
      assert.ok(done.every(Boolean))
      const replays = await Promise.all(keys.map((key) => store.claim(request(key))))
      assert.ok(replays.every((result) => result.outcome === 'exists' && result.record.response?.body === 'paid'))
    })

    it(`ioredis ${major}: a slot that moves is not seen by callers`, async (t) => {
      const store = await storeOn(make())
      t.after(() => store.close())
      const key = randomUUID()
      const full = keyPrefix + key
      const from = await cluster.masterOf(full)
      const to = cluster.servers.find((server) => server !== from) ?? assert.fail()
      const slot = Number(await from.cli('CLUSTER', 'KEYSLOT', full))
      const result = await store.claim(request(key))
      assert.ok(result.outcome === 'claimed')
      await to.cli('CLUSTER', 'SETSLOT', slot, 'IMPORTING', cluster.idOf(from))
      await from.cli('CLUSTER', 'SETSLOT', slot, 'MIGRATING', cluster.idOf(to))
      assert.equal((await store.claim(request(key))).outcome, 'exists', 'the key is still where it was')
      const keys = (await from.cli('CLUSTER', 'GETKEYSINSLOT', slot, 1_000)).split('\n')
      assert.ok(keys.includes(full))
      for (const each of keys) await from.cli('MIGRATE', to.host, to.port, each, 0, 5_000)
      assert.equal((await store.claim(request(key))).outcome, 'exists', 'the key has moved, the slot not yet: ASK')
      assert.equal(await store.renew(result.claim, 30_000), true)
      for (const node of cluster.servers) await node.cli('CLUSTER', 'SETSLOT', slot, 'NODE', cluster.idOf(to))
      const response = { statusCode: 200, headers: {}, body: 'paid', replayable: true }
      await until('the move is over', async () => (await cluster.masterOf(full)) === to)
      assert.equal(await store.complete(result.claim, response, 60_000), true)
      const replay = await store.claim(request(key))
      assert.ok(replay.outcome === 'exists' && replay.record.response?.body === 'paid')
      await store.close()
    })
  }
})
