/** What goes over the wire, and when it is given up. */

import assert from 'node:assert/strict'
import { after, before, it, type TestContext } from 'node:test'
import { Redis } from 'ioredis'
import { type RedisClient, RedisStore, type RedisStoreOptions } from '../src/stores/redis/index.ts'
import { startProxy } from './support/redis/proxy.ts'
import { type RedisServer, startRedis } from './support/redis/servers.ts'
import { request } from './support/requests.ts'

let redis: RedisServer
before(async () => {
  redis = await startRedis({})
})
after(() => redis.stop())

async function openStore(t: TestContext, options: RedisStoreOptions): Promise<RedisStore> {
  const store = new RedisStore(options)
  t.after(() => store.close())
  await store.check()
  return store
}

/** How often the server has read from a socket so far. */
async function readsOf(server: RedisServer): Promise<number> {
  return Number(/total_reads_processed:(\d+)/.exec(await server.cli('INFO', 'stats'))?.[1])
}

async function readsFor(store: RedisStore, claims: number): Promise<number> {
  const before = await readsOf(redis)
  const results = await Promise.all(Array.from({ length: claims }, () => store.claim(request())))
  const afterwards = await readsOf(redis)
  assert.ok(results.every(({ outcome }) => outcome === 'claimed'))
  return afterwards - before
}

it('fifty claims of one turn of the event loop reach Redis in one write', async (t) => {
  const own = await openStore(t, { url: redis.url })
  assert.ok((await readsFor(own, 50)) <= 4, 'a client that the store has built')
  for (const enableAutoPipelining of [false, true]) {
    const client = new Redis(redis.url, { enableAutoPipelining })
    t.after(() => client.disconnect())
    const handedOver = await openStore(t, { client: client as unknown as RedisClient })
    assert.ok((await readsFor(handedOver, 50)) <= 4, `a client with enableAutoPipelining: ${enableAutoPipelining}`)
  }
})

it('a connection that is silent for more than 5 s is given up, with all that waits on it', {
  timeout: 20_000,
}, async (t) => {
  const proxy = await startProxy(redis)
  t.after(() => proxy.stop())
  const store = await openStore(t, { url: proxy.url })
  const result = await store.claim(request())
  assert.ok(result.outcome === 'claimed')
  proxy.blackhole()
  const startedAt = performance.now()
  await Promise.all([
    assert.rejects(store.release(result.claim)),
    assert.rejects(store.claim(request())),
    assert.rejects(store.read(result.claim.scopedKey)),
  ])
  const waitedMs = performance.now() - startedAt
  assert.ok(waitedMs > 4_500 && waitedMs < 8_000, `${waitedMs} ms`)
  proxy.pass()
  await store.check()
  assert.equal(await store.release(result.claim), true)
})

it('a connection that WAIT holds up for longer than that is not', { timeout: 30_000 }, async (t) => {
  const store = await openStore(t, { url: redis.url, waitReplicas: 1, waitTimeoutMs: 6_000 })
  await assert.rejects(store.claim(request()), /replica/)
})
