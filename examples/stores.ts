/** Which store a URL stands for. A driver is imported only when its store is asked for. */

import { type IdempotencyStore, MemoryStore } from 'fastify-idempotency'

type Open = (url: string) => IdempotencyStore | Promise<IdempotencyStore>

const STORES: ReadonlyMap<string, Open> = new Map<string, Open>([
  ['memory:', () => new MemoryStore()],
  ['redis:', openRedis],
  ['rediss:', openRedis],
])

/**
 * Opens the store of a URL such as `memory:` or `redis://127.0.0.1:6379`.
 * @throws Error naming the known schemes; never with the rest of the URL, which may hold a password
 */
export async function openStore(url: string): Promise<IdempotencyStore> {
  const scheme = /^[a-z][a-z0-9+.-]*:/i.exec(url)?.[0].toLowerCase()
  const open = STORES.get(scheme ?? '')
  if (open !== undefined) return open(url)
  const problem = scheme === undefined ? 'is not a URL' : `has the unknown scheme ${scheme}`
  throw new Error(`IDEMPOTENCY_STORE ${problem} (known: ${[...STORES.keys()].join(', ')})`)
}

async function openRedis(url: string): Promise<IdempotencyStore> {
  const { RedisStore } = await import('fastify-idempotency/redis')
  const store = new RedisStore({ url })
  try {
    // The plugin asks too, at `app.listen`. Here the answer can say which setting of the demo is wrong.
    await store.check()
    return store
  } catch (error) {
    await store.close()
    const { message } = error as Error
    throw new Error(`IDEMPOTENCY_STORE: ${message}. Is one running at ${hostOf(url)}, with this user and password?`)
  }
}

function hostOf(url: string): string {
  return URL.canParse(url) ? new URL(url).host || 'localhost' : 'that address'
}
