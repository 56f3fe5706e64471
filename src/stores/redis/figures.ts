/** What Redis tells of itself, one INFO for each scrape. */

import type { StoreFigure, StoreFigures } from '../../store.ts'
import { parseInfo } from './check.ts'
import type { RedisClient } from './client.ts'

const FIGURES: readonly (StoreFigure & { readonly field: string })[] = [
  {
    name: 'redis_evicted_keys_total',
    field: 'evicted_keys',
    help: 'Keys that Redis forgot for lack of memory. Any is a record lost: set maxmemory-policy noeviction, add memory.',
  },
  {
    name: 'redis_used_memory_rss_bytes',
    field: 'used_memory_rss',
    help: 'Memory that Redis holds. Compare with redis_maxmemory_bytes; above 80 % add memory or lower ttlMs.',
  },
  {
    name: 'redis_maxmemory_bytes',
    field: 'maxmemory',
    help: 'Memory that Redis may use; 0 is no limit.',
  },
  {
    name: 'redis_instantaneous_ops_per_sec',
    field: 'instantaneous_ops_per_sec',
    help: 'Commands that Redis carries out in a second, of all its clients.',
  },
]

/** Memory, evictions and load of the Redis behind a client; in a Cluster of one of its nodes. */
export function redisFigures(client: RedisClient): StoreFigures {
  return {
    list: FIGURES,
    async read() {
      const info = parseInfo(await client.info())
      return Object.fromEntries(
        FIGURES.flatMap(({ name, field }) => (field in info ? [[name, Number(info[field])]] : [])),
      )
    },
  }
}
