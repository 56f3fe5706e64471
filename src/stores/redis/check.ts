/** What can be known of a Redis before the first request: its version, and settings that lose records. */

import type { RedisClient } from './client.ts'

/** `INFO` as name → value. */
export type Info = Readonly<Record<string, string>>

export function parseInfo(text: string): Info {
  const pairs = [...text.matchAll(/^([^#:\r\n]+):(.*?)\r?$/gm)]
  return Object.fromEntries(pairs.map(([, name, value]) => [name, value]))
}

/** `SET … NX GET` came with Redis 7.0. */
export async function hasNativeClaim(client: RedisClient): Promise<boolean> {
  return isRedis7(parseInfo(await client.info('server')))
}

// Valkey, forked from 7.2, calls itself redis_version 7.2.4, whatever its own version is.
function isRedis7({ redis_version: version = '0' }: Info): boolean {
  return Number.parseInt(version, 10) >= 7
}

/** Sentences about settings that lose records or leave ghost writes, and what to do about each. */
export async function checkServer(client: RedisClient, waitReplicas: number): Promise<string[]> {
  const info = parseInfo(await client.info())
  return [
    ...checkClient(client),
    ...checkMemory(info),
    ...checkPersistence(info),
    ...(await checkReplication(client, info, waitReplicas)),
  ]
}

function checkMemory({ maxmemory_policy: policy }: Info): string[] {
  if (policy === undefined || policy === 'noeviction') return []
  return [
    `Redis has maxmemory-policy ${policy}: under memory pressure it forgets records, and their requests run again; ` +
      'set maxmemory-policy noeviction',
  ]
}

function checkPersistence({ aof_enabled: aof }: Info): string[] {
  if (aof !== '0') return []
  return ['Redis has no append-only file: a restart forgets records, and their requests run again; set appendonly yes']
}

async function checkReplication(client: RedisClient, info: Info, waitReplicas: number): Promise<string[]> {
  const hasReplicas = Number(info['connected_slaves'] ?? 0) > 0
  const warnings: string[] = []
  if (hasReplicas && waitReplicas === 0) {
    warnings.push(
      'Redis has replicas but waitReplicas is 0: a failover forgets claims that were acknowledged; set waitReplicas to 1',
    )
  }
  if (hasReplicas && waitReplicas === 0 && !isRedis7(info)) {
    warnings.push(
      'Redis before 7 does not apply min-replicas-to-write to scripts, and a script claims there: an old master that ' +
        'was cut off still takes claims; set waitReplicas to 1 or use Redis 7',
    )
  }
  if (hasReplicas && isRedis7(info) && (await minReplicasToWrite(client)) === 0) {
    warnings.push(
      'Redis has min-replicas-to-write 0: an old master that was cut off still takes claims; ' +
        'set min-replicas-to-write 1 and min-replicas-max-lag 1',
    )
  }
  return warnings
}

// CONFIG is closed on many managed services: what cannot be read is not warned about.
async function minReplicasToWrite(client: RedisClient): Promise<number | undefined> {
  try {
    const reply = (await client.config('GET', 'min-replicas-to-write')) as string[] | Record<string, string>
    const value = Array.isArray(reply) ? reply[1] : reply['min-replicas-to-write']
    return value === undefined ? undefined : Number(value)
  } catch {
    return undefined
  }
}

interface ClientOptions {
  readonly enableOfflineQueue?: boolean
  readonly maxRetriesPerRequest?: number | null
  readonly autoResendUnfulfilledCommands?: boolean
  readonly sentinels?: unknown
  readonly failoverDetector?: boolean
  readonly redisOptions?: ClientOptions
  /** Only a Cluster has these. */
  readonly retryDelayOnFailover?: number
  readonly retryDelayOnClusterDown?: number
}

function checkClient({ options }: RedisClient): string[] {
  const given = options as ClientOptions
  const connection = given.redisOptions ?? given
  const warnings: string[] = []
  if (given.enableOfflineQueue !== false) {
    warnings.push(
      'the ioredis client queues commands while it is offline, so a claim can run long after its 503; set enableOfflineQueue: false',
    )
  }
  if (connection.maxRetriesPerRequest !== 0) {
    warnings.push(
      'the ioredis client sends commands again after a reconnect, so a claim can run long after its 503; set maxRetriesPerRequest: 0',
    )
  }
  if (connection.autoResendUnfulfilledCommands === false) {
    warnings.push(
      'with autoResendUnfulfilledCommands: false ioredis never settles a command whose connection was lost; leave it on',
    )
  }
  if (given.retryDelayOnFailover || given.retryDelayOnClusterDown) {
    warnings.push(
      'the ioredis Cluster client sends commands again that lost their connection or that the Cluster refused, so a ' +
        'claim can run long after its 503; set retryDelayOnFailover: 0 and retryDelayOnClusterDown: 0',
    )
  }
  if (given.sentinels && given.failoverDetector !== true) {
    warnings.push('the Sentinel client does not see a failover until its connection breaks; set failoverDetector: true')
  }
  return warnings
}
