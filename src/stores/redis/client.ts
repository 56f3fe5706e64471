/** The part of ioredis that is used, and clients built with settings that leave no ghost writes. */

import type { ConnectionOptions } from 'node:tls'
import { Cluster, Redis } from 'ioredis'
import type { StreamOwner } from './one-write.ts'

/** A connected ioredis `Redis` (single or through Sentinel) or `Cluster`, of version 5 or 6. */
export interface RedisClient extends StreamOwner {
  readonly status: string
  readonly options: object
  readonly isCluster: boolean
  setBuffer(key: string, value: string | Buffer, ...options: never[]): Promise<Buffer | null>
  defineCommand(name: string, definition: { lua: string; numberOfKeys: number }): void
  info(...sections: string[]): Promise<string>
  config(operation: 'GET', name: string): Promise<unknown>
  pipeline(): { exec(): Promise<[error: Error | null, result: unknown][] | null> }
  on(event: string, listener: (error: Error) => void): unknown
  off(event: string, listener: (error: Error) => void): unknown
  connect(): Promise<void>
  disconnect(): void
  /** Only a Cluster has it. */
  nodes?(): readonly { ping(): Promise<unknown> }[]
}

/** How to log in and to encrypt. Anything else takes a client of your own. */
export interface RedisConnection {
  /** Redis 6 or later, with ACLs. */
  readonly username?: string
  readonly password?: string
  /**
   * Number of the database. A Cluster has only 0.
   * @default 0
   */
  readonly db?: number
  /** Encrypts, with these options of `tls.connect`: `ca`, `cert`, `key`, `servername`; `{}` for their defaults. */
  readonly tls?: object
  /** As `CLIENT LIST` shows it. */
  readonly connectionName?: string
  readonly sentinelUsername?: string
  readonly sentinelPassword?: string
  /** As `tls`, for the connections to the Sentinels. */
  readonly sentinelTls?: object
}

interface Address {
  readonly host: string
  readonly port: number
}

/** Where a client should connect to when the store builds it, and how. */
export type RedisAddress = { readonly connection?: RedisConnection } & (
  | { readonly url: string }
  | { readonly sentinels: readonly Address[]; readonly name: string }
  | { readonly nodes: readonly (string | Address)[] }
)

// A command that waits in a queue, or is sent again when its caller has long been answered, is a ghost write. Without
// a queue and without retries a call either reached Redis on this connection or did not (RELIABILITY, rule 4).
const NO_RETRIES = { maxRetriesPerRequest: 0, connectTimeout: 2_000 } as const
const NO_GHOSTS = { ...NO_RETRIES, enableOfflineQueue: false } as const

// A Cluster client otherwise sends a command again that lost its connection, 100 ms later and up to 16 times: its reply
// may have been lost after Redis carried it out. What MOVED and ASK refused is sent on at once all the same. Its nodes
// connect when they are first asked, so that each needs its queue for that long.
const NO_CLUSTER_GHOSTS = { enableOfflineQueue: false, retryDelayOnFailover: 0, retryDelayOnClusterDown: 0 } as const

// Then a silent connection is given up, with all that waits on it. One timer for each connection, where `commandTimeout`
// sets one for each command.
const SILENT_FOR_MS = 5_000

const RECONNECT = (attempt: number) => Math.min(attempt * 50, 500)

/** A client that the store has built, and how to end it. */
export interface OwnClient {
  readonly client: RedisClient
  disconnect(): void
}

const REVIVE_AFTER_MS = 100

/**
 * A client for an address, without an offline queue and without retries.
 * @param waitTimeoutMs for how long WAIT may hold up a connection
 */
export function connect(address: RedisAddress, waitTimeoutMs: number): OwnClient {
  const client = build(address, { socketTimeout: SILENT_FOR_MS + waitTimeoutMs })
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

function build(address: RedisAddress, silence: { readonly socketTimeout: number }): RedisClient {
  const { sentinelTls, ...connection } = (address.connection ?? {}) as RedisConnection & { tls?: ConnectionOptions }
  if ('url' in address) {
    return asClient(new Redis(address.url, { ...connection, ...NO_GHOSTS, ...silence, retryStrategy: RECONNECT }))
  }
  if ('sentinels' in address) {
    const { sentinels, name } = address
    return asClient(
      new Redis({
        ...connection,
        ...(sentinelTls && { sentinelTLS: sentinelTls }),
        ...NO_GHOSTS,
        ...silence,
        sentinels: [...sentinels],
        name,
        enableTLSForSentinelMode: connection.tls !== undefined,
        failoverDetector: true,
        retryStrategy: RECONNECT,
        sentinelRetryStrategy: RECONNECT,
      }),
    )
  }
  const cluster = new Cluster([...address.nodes], {
    ...NO_CLUSTER_GHOSTS,
    enableAutoPipelining: true,
    clusterRetryStrategy: RECONNECT,
    redisOptions: { ...connection, ...NO_RETRIES, ...silence },
  })
  // Not while it is still connecting: it asks a node whether the Cluster is up, and none may be connecting itself then.
  cluster.on('ready', () => cluster.nodes().forEach(connectSoon))
  cluster.on('+node', (node: Redis) => {
    if (cluster.status === 'ready') connectSoon(node)
  })
  return asClient(cluster)
}

// A node connects when it is first asked, and refuses whoever else asks until it has: so it connects before. Not at once,
// because a command that is redirected to a new node must find it unconnected, to connect it and be sent.
function connectSoon(node: Redis): void {
  setImmediate(() => {
    if (node.status === 'wait') node.connect().catch(() => {})
  })
}

function asClient(client: Redis | Cluster): RedisClient {
  return client as unknown as RedisClient
}

/**
 * Resolves when a client can take commands.
 * @throws Error after `timeoutMs`, with what its last attempt to connect came to
 */
export async function whenReady(client: RedisClient, timeoutMs: number): Promise<void> {
  await ready(client, timeoutMs)
  // A Cluster that is ready may not be connected to all its nodes yet.
  await Promise.allSettled((client.nodes?.() ?? []).map((node) => node.ping()))
}

function ready(client: RedisClient, timeoutMs: number): Promise<void> {
  if (client.status === 'ready') return Promise.resolve()
  return new Promise((resolve, reject) => {
    let because = ''
    const onError = (error: Error) => {
      because = `: ${reasonOf(error)}`
    }
    const end = (settle: () => void) => {
      clearTimeout(timer)
      client.off('ready', onReady)
      client.off('error', onError)
      settle()
    }
    const onReady = () => end(resolve)
    const timer = setTimeout(() => {
      end(() => reject(new Error(`Redis is not reachable (${client.status}) after ${timeoutMs} ms${because}`)))
    }, timeoutMs)
    client.on('ready', onReady)
    client.on('error', onError)
  })
}

// A Cluster says that all its nodes have failed, and keeps why the last one did. A host of several addresses fails with
// one error for each, and no message of its own.
function reasonOf(error: Error & { lastNodeError?: Error; errors?: readonly Error[] }): string {
  const [first] = error.errors ?? []
  const cause = error.lastNodeError ?? (error.message === '' ? first : undefined)
  return [error.message, cause && reasonOf(cause)].filter(Boolean).join(' ') || String(error)
}
