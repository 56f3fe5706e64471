/** What Redis refuses is not run, and can be run as soon as Redis takes it again. */

import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { describe, it, type TestContext } from 'node:test'
import { Redis } from 'ioredis'
import type { IdempotencyStore } from '../src/store.ts'
import { RedisStore } from '../src/stores/redis/index.ts'
import { createApp, post } from './support/app.ts'
import { startCluster } from './support/redis/cluster.ts'
import { eventually } from './support/redis/processes.ts'
import { type RedisOptions, type RedisServer, startRedis } from './support/redis/servers.ts'
import { intercepted } from './support/stores.ts'

const LEASE_MS = 30_000
/** A master otherwise waits five seconds for more replicas before it sends them its data. */
const SYNC_AT_ONCE = ['--repl-diskless-sync-delay', '0']

/** Ten seconds for the thousand keys of `fill`, unless the delay is taken off; and it answers after each of them. */
const LOADS_SLOWLY = ['--key-load-delay', '10000', '--loading-process-events-interval-bytes', '1024']

async function fill(redis: RedisServer): Promise<void> {
  const pairs = Array.from({ length: 1_000 }, (_, n) => [`filler:${n}`, randomBytes(1_024).toString('base64')])
  await redis.cli('MSET', ...pairs.flat())
}

async function start(t: TestContext, options: RedisOptions = {}): Promise<RedisServer> {
  const redis = await startRedis(options)
  t.after(() => redis.stop())
  return redis
}

/** An app on the store, and what the store was refused with. */
async function payWith(t: TestContext, inner: IdempotencyStore) {
  t.after(() => inner.close?.())
  await inner.check?.()
  const refusals: string[] = []
  const store = intercepted(inner, async (operation, perform) => {
    try {
      return await perform()
    } catch (error) {
      if (operation === 'claim') refusals.push(String(error))
      throw error
    }
  })
  const app = await createApp(t, { store, leaseMs: LEASE_MS })
  let runs = 0
  app.post('/pay', async () => ({ run: ++runs }))
  await app.ready()

  /** 503 for this reason, and nothing runs. */
  const assertRefused = async (key: string, reason: RegExp) => {
    const before = runs
    const { statusCode } = await post(app, '/pay', key)
    assert.equal(statusCode, 503)
    assert.match(refusals.at(-1) ?? 'not refused', reason)
    assert.equal(runs, before, 'it was run all the same')
  }
  /** Runs, long before the lease of a ghost claim would be over, and once. */
  const assertRunsNow = async (key: string, since: number) => {
    await eventually('it runs', async () => (await post(app, '/pay', key)).statusCode === 200)
    assert.equal((await post(app, '/pay', key)).headers['idempotent-replayed'], 'true')
    assert.ok(performance.now() - since < LEASE_MS / 2, 'it had to wait for the lease of a ghost')
  }
  return { app, assertRefused, assertRunsNow, refusals }
}

describe('Redis refuses', { concurrency: 2 }, () => {
  it('LOADING: it reads its data from disk after a restart', async (t) => {
    const redis = await start(t, { args: LOADS_SLOWLY })
    // Without the ready check, with which ioredis itself waits until Redis has loaded.
    const client = new Redis(redis.url, {
      enableOfflineQueue: false,
      maxRetriesPerRequest: 0,
      enableReadyCheck: false,
      retryStrategy: () => 10,
    })
    client.on('error', () => {})
    t.after(() => client.disconnect())
    const { assertRefused, assertRunsNow, refusals, app } = await payWith(t, new RedisStore({ client }))
    assert.equal((await post(app, '/pay', 'before')).statusCode, 200)
    await fill(redis)
    await redis.cli('SAVE')
    await redis.kill()
    const restarting = redis.restart()
    const isLoading = async () => {
      await post(app, '/pay', 'k')
      return /LOADING/.test(refusals.at(-1) ?? '')
    }
    await eventually('it loads', isLoading)
    await assertRefused('k', /LOADING/)
    await assertRefused('before', /LOADING/)
    const since = performance.now()
    await redis.cli('CONFIG', 'SET', 'key-load-delay', 0)
    await restarting
    await assertRunsNow('k', since)
    assert.equal((await post(app, '/pay', 'before')).headers['idempotent-replayed'], 'true')
  })

  it('LOADING: a client with the ready check is refused before it asks', async (t) => {
    const redis = await start(t, { args: LOADS_SLOWLY })
    const { assertRefused, assertRunsNow } = await payWith(t, new RedisStore({ url: redis.url }))
    await fill(redis)
    await redis.cli('SAVE')
    await redis.kill()
    const restarting = redis.restart()
    await eventually('it loads', async () => /loading:1/.test(await redis.cli('INFO', 'persistence').catch(() => '')))
    await assertRefused('k', /enableOfflineQueue/)
    const since = performance.now()
    await redis.cli('CONFIG', 'SET', 'key-load-delay', 0)
    await restarting
    await assertRunsNow('k', since)
  })

  it('CLUSTERDOWN: a master is lost whose slots nobody has', async (t) => {
    const cluster = await startCluster({ masters: 3, replicas: 0 })
    t.after(() => cluster.stop())
    const { assertRefused, assertRunsNow } = await payWith(t, new RedisStore({ nodes: cluster.nodes }))
    const scoped = (key: string) => `idem#v1#anonymous#POST:/pay#${key}`
    const lost = await cluster.masterOf(scoped('k'))
    let other = 'k'
    for (let n = 0; (await cluster.masterOf(scoped(other))) === lost; n++) other = `k${n}`
    await lost.kill()
    const living = cluster.servers.filter((server) => server !== lost)
    await eventually('the others to have noticed', async () => {
      const states = await Promise.all(living.map((server) => server.cli('CLUSTER', 'INFO')))
      return states.every((state) => /cluster_state:fail/.test(state))
    })
    await assertRefused(other, /CLUSTERDOWN/)
    await assertRefused('k', /CLUSTERDOWN|closed|ready/)
    const since = performance.now()
    await lost.restart()
    await assertRunsNow(other, since)
    await assertRunsNow('k', since)
  })

  it('OOM: memory is full and may not be evicted', async (t) => {
    const redis = await start(t)
    const { app, assertRefused, assertRunsNow } = await payWith(t, new RedisStore({ url: redis.url }))
    assert.equal((await post(app, '/pay', 'before')).statusCode, 200)
    await redis.cli('CONFIG', 'SET', 'maxmemory', 1)
    await assertRefused('k', /OOM/)
    await assertRefused('before', /OOM/)
    const since = performance.now()
    await redis.cli('CONFIG', 'SET', 'maxmemory', 0)
    await assertRunsNow('k', since)
    assert.equal((await post(app, '/pay', 'before')).headers['idempotent-replayed'], 'true')
  })

  it('READONLY: it has become a replica', async (t) => {
    const [redis, master] = [await start(t), await start(t, { args: SYNC_AT_ONCE })]
    const { assertRefused, assertRunsNow } = await payWith(t, new RedisStore({ url: redis.url }))
    await redis.cli('REPLICAOF', master.host, master.port)
    await eventually('it follows', async () => /master_link_status:up/.test(await redis.cli('INFO', 'replication')))
    await assertRefused('k', /READONLY/)
    assert.equal(await master.cli('DBSIZE'), '0')
    const since = performance.now()
    await redis.cli('REPLICAOF', 'NO', 'ONE')
    await assertRunsNow('k', since)
  })

  it('MASTERDOWN: a replica whose master is gone, and that may not answer with old data', async (t) => {
    const [redis, master] = [
      await start(t, { args: ['--replica-serve-stale-data', 'no', '--replica-read-only', 'no'] }),
      await start(t, { args: SYNC_AT_ONCE }),
    ]
    const { assertRefused, assertRunsNow } = await payWith(t, new RedisStore({ url: redis.url }))
    await redis.cli('REPLICAOF', master.host, master.port)
    await eventually('it follows', async () => /master_link_status:up/.test(await redis.cli('INFO', 'replication')))
    await master.kill()
    await eventually('it notices', async () => /master_link_status:down/.test(await redis.cli('INFO', 'replication')))
    await assertRefused('k', /MASTERDOWN/)
    const since = performance.now()
    await redis.cli('REPLICAOF', 'NO', 'ONE')
    await assertRunsNow('k', since)
  })

  it('NOREPLICAS: fewer replicas than min-replicas-to-write', async (t) => {
    const redis = await start(t)
    const { assertRefused, assertRunsNow } = await payWith(t, new RedisStore({ url: redis.url }))
    await redis.cli('CONFIG', 'SET', 'min-replicas-to-write', 1)
    await assertRefused('k', /NOREPLICAS/)
    assert.equal(await redis.cli('DBSIZE'), '0')
    const since = performance.now()
    await redis.cli('CONFIG', 'SET', 'min-replicas-to-write', 0)
    await assertRunsNow('k', since)
  })
})
