/** Which store a URL stands for. A driver is imported only when its store is asked for. */

import { type IdempotencyStore, MemoryStore } from 'fastify-idempotency'

type Open = (url: string) => IdempotencyStore | Promise<IdempotencyStore>

const STORES: ReadonlyMap<string, Open> = new Map<string, Open>([
  ['memory:', () => new MemoryStore()],
  ['redis:', openRedis],
  ['rediss:', openRedis],
  ['dynamodb:', openDynamoDB],
])

/**
 * Opens the store of a URL: `memory:`, `redis://127.0.0.1:6379`, `dynamodb://127.0.0.1:8000/table` for a server nearby or
 * `dynamodb:///table` for AWS, with region and credentials from the environment.
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

/** Makes the table when it is not there: this is a demo. */
async function openDynamoDB(url: string): Promise<IdempotencyStore> {
  const { host, pathname } = new URL(url)
  const tableName = pathname.slice(1)
  const { DynamoDBClient } = await import('@aws-sdk/client-dynamodb')
  const { createTable, DynamoDBStore } = await import('fastify-idempotency/dynamodb')
  const nearby = {
    endpoint: `http://${host}`,
    region: 'local',
    credentials: { accessKeyId: 'any', secretAccessKey: 'any' },
  }
  const client = new DynamoDBClient(host === '' ? {} : nearby)
  try {
    const store = new DynamoDBStore({ client, tableName })
    await createTable(client, { tableName })
    return store
  } catch (error) {
    client.destroy()
    throw new Error(`IDEMPOTENCY_STORE: ${(error as Error).message}`)
  }
}
