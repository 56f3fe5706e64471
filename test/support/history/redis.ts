/** Redis for three apps, each behind a proxy of its own. */

import { setTimeout as sleep } from 'node:timers/promises'
import { Redis } from 'ioredis'
import { type RedisClient, RedisStore } from '../../../src/stores/redis/index.ts'
import { type ProxyCounters, startProxy } from '../redis/proxy.ts'
import { startRedis } from '../redis/servers.ts'
import { APPS, type Bed, inTurn } from './bed.ts'
import type { Chance } from './chance.ts'
import type { Link } from './recorder.ts'

/**
 * A single server. Two apps have clients that send again what was not answered, the third the one that the store
 * builds. Replies are lost, late or cut off, connections killed, and the server is silent for a while.
 */
export async function redisBed(): Promise<Bed> {
  const server = await startRedis({})
  const proxies = await Promise.all(Array.from({ length: APPS }, () => startProxy(server)))
  const own = new RedisStore({ url: proxies[0]?.url as string })
  const clients = proxies.slice(1).map(({ url }) => new Redis(url, { retryStrategy: () => 10 }))
  const links = [{ store: own, losses: () => 0, isUnsent }, ...clients.map(resending)]
  for (const { store } of links) await store.check?.()
  let kills = 0
  const total = (name: keyof ProxyCounters) => proxies.reduce((sum, { counters }) => sum + counters[name], 0)
  const loseReplies = (chance: Chance) => chance.pick(proxies).resetAfterApply(chance.between(1, 3))
  const pause = (chance: Chance) => sleep(chance.between(20, 120))
  return {
    links,
    disturb: inTurn(
      loseReplies,
      pause,
      async () => {
        kills += Number(await server.cli('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes'))
      },
      pause,
      (chance) => chance.pick(proxies).delay(chance.between(5, 60)),
      pause,
      loseReplies,
      pause,
      (chance) => chance.pick(proxies).blackhole(),
      pause,
      pause,
      () => proxies.forEach((proxy) => void proxy.pass()),
      pause,
    ),
    calm: () => proxies.forEach((proxy) => void proxy.pass()),
    faults: () => ({
      'lost replies': total('lostReplies'),
      'late replies': total('delayedReplies'),
      'requests that never arrived': total('droppedRequests'),
      'killed connections': kills,
    }),
    async stop() {
      for (const client of clients) client.disconnect()
      await own.close()
      await Promise.all(proxies.map((proxy) => proxy.stop()))
      await server.stop()
    },
  }
}

function resending(client: Redis): Link {
  let losses = 0
  client.on('close', () => losses++)
  client.on('error', () => {})
  return { store: new RedisStore({ client: client as unknown as RedisClient }), losses: () => losses }
}

// What ioredis says without an offline queue while it is not connected.
function isUnsent(error: unknown): boolean {
  return /isn't writeable/.test(String(error))
}
