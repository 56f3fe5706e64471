/** A Cluster client does not send a command again whose caller has been answered, and follows redirections. */

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, it, type TestContext } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { Cluster } from 'ioredis'
import { Cluster as Cluster5 } from 'ioredis5'
import { type RedisClient, RedisStore } from '../src/stores/redis/index.ts'
import { startCluster } from './support/redis/cluster.ts'
import { BUS_OFFSET, eventually } from './support/redis/processes.ts'
import { startProxy } from './support/redis/proxy.ts'
import type { RedisServer } from './support/redis/servers.ts'
import { request } from './support/requests.ts'
import { until } from './support/stores.ts'

/** A Cluster that tells its clients to come to its first node through the proxy, and keys of that node. */
async function proxied(t: TestContext) {
  const cluster = await startCluster({ masters: 3, replicas: 0 })
  const [node] = cluster.servers as [RedisServer]
  const proxy = await startProxy(node)
  t.after(async () => {
    await proxy.stop()
    await cluster.stop()
  })
  await node.cli('CONFIG', 'SET', 'cluster-announce-bus-port', node.port + BUS_OFFSET)
  await node.cli('CONFIG', 'SET', 'cluster-announce-port', proxy.port)
  await eventually('all nodes to know the way', async () => {
    const views = await Promise.all(cluster.servers.map((server) => server.cli('CLUSTER', 'SLOTS')))
    return views.every((view) => view.split('\n').includes(String(proxy.port)))
  })
  const newKey = async (): Promise<string> => {
    const key = randomUUID()
    return (await cluster.masterOf(key)) === node ? key : newKey()
  }
  const nodes = [{ host: proxy.host, port: proxy.port }, ...cluster.nodes.slice(1)]
  return { node, proxy, nodes, newKey }
}

async function callsOf(node: RedisServer, command: string): Promise<number> {
  const stats = await node.cli('INFO', 'commandstats')
  return Number(new RegExp(`cmdstat_${command}:calls=(\\d+)`).exec(stats)?.[1] ?? 0)
}

const SAFE = {
  enableOfflineQueue: false,
  retryDelayOnFailover: 0,
  retryDelayOnClusterDown: 0,
  redisOptions: { maxRetriesPerRequest: 0 },
}
const UNSAFE = { ...SAFE, retryDelayOnFailover: 100 }

describe('a Cluster client', () => {
  it('built by the store: a claim whose reply was lost is not sent again', async (t) => {
    const { node, proxy, nodes, newKey } = await proxied(t)
    const store = new RedisStore({ nodes })
    t.after(() => store.close())
    await store.check()
    for (let round = 1; round <= 5; round++) {
      const key = await newKey()
      proxy.resetAfterApply(1, /^SET$/)
      await assert.rejects(store.claim(request(key)), 'the lost reply is unknown to the caller')
      assert.equal(await callsOf(node, 'set'), round, 'SETs at the server')
      // Later on the same way: whatever had been sent again would have come before it.
      await until('it answers again', () =>
        store.read(key).then(
          () => true,
          () => false,
        ),
      )
      assert.equal(await callsOf(node, 'set'), round, 'SETs at the server, later')
    }
    assert.equal(proxy.counters.lostReplies, 5)
  })

  it('built by the store: a claim that nobody could take in time is not carried out later', async (t) => {
    const { node, proxy, nodes, newKey } = await proxied(t)
    const store = new RedisStore({ nodes })
    t.after(() => store.close())
    await store.check()
    const before = await callsOf(node, 'set')
    const key = await newKey()
    await proxy.refuse()
    const claiming = Promise.allSettled([store.claim(request(key))])
    await Promise.race([claiming, sleep(60)]) // a client that tries again does so after 100 ms
    await proxy.reopen()
    const [{ status }] = await claiming
    assert.equal(status, 'rejected')
    await until('it answers again', () =>
      store.read(key).then(
        () => true,
        () => false,
      ),
    )
    assert.equal(await callsOf(node, 'set'), before)
    assert.equal(await node.cli('DBSIZE'), '0')
  })

  it('built by the store: a slot that moves is not seen by callers', async (t) => {
    const cluster = await startCluster({ masters: 3, replicas: 0 })
    t.after(() => cluster.stop())
    const store = new RedisStore({ nodes: cluster.nodes })
    t.after(() => store.close())
    await store.check()
    const key = randomUUID()
    const from = await cluster.masterOf(key)
    const to = cluster.servers.find((server) => server !== from) ?? assert.fail()
    const slot = await from.cli('CLUSTER', 'KEYSLOT', key)
    const result = await store.claim(request(key))
    assert.ok(result.outcome === 'claimed')
    await to.cli('CLUSTER', 'SETSLOT', slot, 'IMPORTING', cluster.idOf(from))
    await from.cli('CLUSTER', 'SETSLOT', slot, 'MIGRATING', cluster.idOf(to))
    await from.cli('MIGRATE', to.host, to.port, key, 0, 5_000)
    assert.equal((await store.claim(request(key))).outcome, 'exists', 'the key has moved, the slot not yet: ASK')
    for (const node of cluster.servers) await node.cli('CLUSTER', 'SETSLOT', slot, 'NODE', cluster.idOf(to))
    const response = { statusCode: 200, headers: {}, body: 'paid', replayable: true }
    assert.equal(await store.complete(result.claim, response, 60_000), true, 'the slot has moved: MOVED')
  })

  it('built by the store: three hundred claims at once, right after the start', async (t) => {
    const cluster = await startCluster({ masters: 3, replicas: 1 })
    t.after(() => cluster.stop())
    const store = new RedisStore({ nodes: cluster.nodes })
    t.after(() => store.close())
    await store.check()
    const results = await Promise.all(Array.from({ length: 300 }, () => store.claim(request(randomUUID()))))
    assert.ok(results.every(({ outcome }) => outcome === 'claimed'))
  })

  for (const [major, Client] of [
    ['5', Cluster5],
    ['6', Cluster],
  ] as const) {
    it(`ioredis ${major}, handed over: the check warns of one that sends commands again, rightly`, async (t) => {
      const { node, proxy, nodes, newKey } = await proxied(t)
      const clients = [SAFE, UNSAFE].map((options) => new Client([...nodes], options))
      t.after(() => clients.forEach((client) => void client.disconnect()))
      const [safe, unsafe] = clients.map((client) => new RedisStore({ client: client as unknown as RedisClient }))
      const warningsOf = async (store: RedisStore | undefined) => ((await store?.check()) ?? []).join()
      assert.doesNotMatch(await warningsOf(safe), /retryDelay/)
      assert.match(await warningsOf(unsafe), /set retryDelayOnFailover: 0 and retryDelayOnClusterDown: 0/)
      const before = await callsOf(node, 'set')
      proxy.resetAfterApply(1, /^SET$/)
      assert.equal((await unsafe?.claim(request(await newKey())))?.outcome, 'claimed')
      assert.equal(await callsOf(node, 'set'), before + 2, 'it was not sent twice')
    })
  }
})
