/** The part of ioredis that is used, and clients built with settings that leave no ghost writes. */

import { Cluster, Redis } from 'ioredis'

/** A connected ioredis `Redis` (single or through Sentinel) or `Cluster`, of version 5 or 6. */
export interface RedisClient {
  readonly status: string
  readonly options: object
  setBuffer(key: string, value: string | Buffer, ...options: never[]): Promise<Buffer | null>
  defineCommand(name: string, definition: { lua: string; numberOfKeys: number }): void
  info(...sections: string[]): Promise<string>
  config(operation: 'GET', name: string): Promise<unknown>
  pipeline(): { exec(): Promise<[error: Error | null, result: unknown][] | null> }
  on(event: string, listener: () => void): unknown
  off(event: string, listener: () => void): unknown
  connect(): Promise<void>
  disconnect(): void
}

/** Where a client should connect to when the store builds it. */
export type RedisAddress =
  | { readonly url: string }
  | { readonly sentinels: readonly { readonly host: string; readonly port: number }[]; readonly name: string }
  | { readonly nodes: readonly (string | { readonly host: string; readonly port: number })[] }

// A command that waits in a queue, or is sent again when its caller has long been answered, is a ghost write. Without
// a queue and without retries a call either reached Redis on this connection or did not (RELIABILITY, rule 4).
const NO_GHOSTS = {
  enableOfflineQueue: false,
  maxRetriesPerRequest: 0,
  connectTimeout: 2_000,
  commandTimeout: 5_000,
} as const

const RECONNECT = (attempt: number) => Math.min(attempt * 50, 500)

/** A client that the store has built, and how to end it. */
export interface OwnClient {
  readonly client: RedisClient
  disconnect(): void
}

const REVIVE_AFTER_MS = 100

/** A client for an address, with auto-pipelining, without an offline queue and without retries. */
export function connect(address: RedisAddress): OwnClient {
  const client = build(address)
  let isWanted = true
  client.on('error', () => {}) // a lost connection shows as failed calls; without a listener ioredis prints each one
  // A failover that is announced while ioredis asks a Sentinel for the master can end the client for good.
  client.on('end', () => {
    if (isWanted) setTimeout(() => client.connect().catch(() => {}), REVIVE_AFTER_MS).unref()
  })
  return {
    client,
    disconnect() {
      isWanted = false
      client.disconnect()
    },
  }
}

function build(address: RedisAddress): RedisClient {
  if ('url' in address) {
    return asClient(new Redis(address.url, { ...NO_GHOSTS, enableAutoPipelining: true, retryStrategy: RECONNECT }))
  }
  if ('sentinels' in address) {
    const { sentinels, name } = address
    return asClient(
      new Redis({
        ...NO_GHOSTS,
        sentinels: [...sentinels],
        name,
        failoverDetector: true,
        enableAutoPipelining: true,
        retryStrategy: RECONNECT,
        sentinelRetryStrategy: RECONNECT,
      }),
    )
  }
  return asClient(
    new Cluster([...address.nodes], {
      enableOfflineQueue: false,
      enableAutoPipelining: true,
      clusterRetryStrategy: RECONNECT,
      redisOptions: { maxRetriesPerRequest: 0, connectTimeout: 2_000, commandTimeout: 5_000 },
    }),
  )
}

function asClient(client: Redis | Cluster): RedisClient {
  return client as unknown as RedisClient
}

/** Resolves when a client can take commands; rejects after `timeoutMs`. */
export function whenReady(client: RedisClient, timeoutMs: number): Promise<void> {
  if (client.status === 'ready') return Promise.resolve()
  return new Promise((resolve, reject) => {
    const onReady = () => {
      clearTimeout(timer)
      resolve()
    }
    const timer = setTimeout(() => {
      client.off('ready', onReady)
      reject(new Error(`Redis is not reachable (${client.status}) after ${timeoutMs} ms`))
    }, timeoutMs)
    client.on('ready', onReady)
  })
}
