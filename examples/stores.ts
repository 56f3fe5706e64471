/** Which store a URL stands for. A driver is imported only when its store is asked for. */

import { type IdempotencyStore, MemoryStore } from 'fastify-idempotency'

const STORES: ReadonlyMap<string, (url: string) => IdempotencyStore | Promise<IdempotencyStore>> = new Map([
  ['memory:', () => new MemoryStore()],
])

/**
 * Opens the store of a URL such as `memory:`.
 * @throws Error naming the known schemes; never with the rest of the URL, which may hold a password
 */
export async function openStore(url: string): Promise<IdempotencyStore> {
  const scheme = /^[a-z][a-z0-9+.-]*:/i.exec(url)?.[0].toLowerCase()
  const open = STORES.get(scheme ?? '')
  if (open !== undefined) return open(url)
  const problem = scheme === undefined ? 'is not a URL' : `has the unknown scheme ${scheme}`
  throw new Error(`IDEMPOTENCY_STORE ${problem} (known: ${[...STORES.keys()].join(', ')})`)
}
