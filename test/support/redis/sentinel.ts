/** A master, its replicas and the Sentinels that watch them. */

import { randomBytes } from 'node:crypto'
import { eventually, freePort, freePorts } from './processes.ts'
import { infoField, launchServer, type RedisServer, startAll, startRedis, stopAll } from './servers.ts'

export interface SentinelOptions {
  /** Default 2. */
  readonly replicas?: number
  /** Default 3; a majority of them is the quorum. */
  readonly sentinels?: number
  /** Silence after which a server is taken for dead. Default 500. */
  readonly downAfterMs?: number
  /** Default 5000; an election that came to nothing is repeated after twice that. */
  readonly failoverTimeoutMs?: number
  /** Further arguments of all data servers, because each can become master: `['--min-replicas-to-write', '1']`. */
  readonly args?: readonly string[]
  /** Further arguments of the server that starts as master. */
  readonly masterArgs?: readonly string[]
  readonly aof?: 'always' | 'everysec' | 'no'
}

export interface SentinelTopology {
  /** The name of the master for clients. */
  readonly name: string
  /** For clients. */
  readonly sentinels: readonly { readonly host: string; readonly port: number }[]
  readonly sentinelServers: readonly RedisServer[]
  /** The data servers; the first one started as master. */
  readonly servers: readonly RedisServer[]
  /** The server that most Sentinels call master at present. */
  master(): Promise<RedisServer>
  /** The other data servers, those that are killed or paused included. */
  replicas(): Promise<readonly RedisServer[]>
  stop(): Promise<void>
}

const NAME = 'main'

/** Ready when all replicas are online and every Sentinel knows all replicas and all other Sentinels as healthy. */
export async function startSentinel(options: SentinelOptions = {}): Promise<SentinelTopology> {
  const servers = await startReplicated(options)
  const sentinelServers = await startSentinels(servers, options).catch(async (error) => {
    await stopAll(servers)
    throw error
  })
  const topology = describe(servers, sentinelServers)
  try {
    await eventually('the Sentinels to agree', () => all(sentinelServers, (one) => isSettled(one, options)))
  } catch (error) {
    await topology.stop()
    throw error
  }
  return topology
}

/** A server and replicas of it that are in step; the first one is the master. */
async function startReplicated({ replicas = 2, args = [], masterArgs = [], aof = 'no' }: SentinelOptions) {
  const port = await freePort()
  const common = ['--repl-diskless-sync-delay', '0', ...args]
  const replica = () => startRedis({ aof, args: ['--replicaof', '127.0.0.1', String(port), ...common] })
  const servers = await startAll([
    startRedis({ aof, port, args: [...common, ...masterArgs] }),
    ...Array.from({ length: replicas }, replica),
  ])
  const [master] = servers as [RedisServer]
  await eventually('the replicas to be online', async () => {
    const info = await master.cli('info', 'replication')
    return (info.match(/^slave\d+:.*state=online/gm) ?? []).length === replicas
  }).catch(async (error) => {
    await stopAll(servers)
    throw error
  })
  return servers
}

async function startSentinels([master, ...replicas]: RedisServer[], options: SentinelOptions): Promise<RedisServer[]> {
  const ports = await freePorts(options.sentinels ?? 3)
  const peers = ports.map((port) => ({ port, id: randomBytes(20).toString('hex') }))
  const config = sentinelConfig((master as RedisServer).port, peers.length, options)
  const known = replicas.map(({ port }) => `sentinel known-replica ${NAME} 127.0.0.1 ${port}`)
  return startAll(
    peers.map((self) => {
      const others = peers.filter((peer) => peer !== self)
      const friends = others.map(({ port, id }) => `sentinel known-sentinel ${NAME} 127.0.0.1 ${port} ${id}`)
      return launchSentinel(self.port, [`sentinel myid ${self.id}`, ...config, ...known, ...friends])
    }),
  )
}

function sentinelConfig(masterPort: number, sentinels: number, options: SentinelOptions): string[] {
  const { downAfterMs = 500, failoverTimeoutMs = 5_000 } = options
  return [
    `sentinel monitor ${NAME} 127.0.0.1 ${masterPort} ${Math.floor(sentinels / 2) + 1}`,
    `sentinel down-after-milliseconds ${NAME} ${downAfterMs}`,
    `sentinel failover-timeout ${NAME} ${failoverTimeoutMs}`,
  ]
}

/** The file is the Sentinel's memory too: it writes to it. */
function launchSentinel(port: number, lines: readonly string[]): Promise<RedisServer> {
  const config = [`port ${port}`, 'bind 127.0.0.1', 'dir .', ...lines, '']
  return launchServer({ port, files: { 'sentinel.conf': config.join('\n') }, args: ['sentinel.conf', '--sentinel'] })
}

function describe(servers: readonly RedisServer[], sentinelServers: readonly RedisServer[]): SentinelTopology {
  const master = () => masterAmong(servers, sentinelServers)
  return {
    name: NAME,
    sentinels: sentinelServers.map(({ host, port }) => ({ host, port })),
    sentinelServers,
    servers,
    master,
    replicas: async () => {
      const current = await master()
      return servers.filter((server) => server !== current)
    },
    stop: () => stopAll([...sentinelServers, ...servers]),
  }
}

async function masterAmong(servers: readonly RedisServer[], sentinels: readonly RedisServer[]): Promise<RedisServer> {
  const asked = sentinels.filter(({ isResponsive }) => isResponsive)
  const ports = await Promise.all(asked.map(masterPortSeenBy))
  const votes = (port: number) => ports.filter((other) => other === port).length
  const [elected] = servers.toSorted((one, other) => votes(other.port) - votes(one.port))
  if (!elected || votes(elected.port) === 0) throw new Error('no Sentinel names a master')
  return elected
}

async function masterPortSeenBy(sentinel: RedisServer): Promise<number> {
  return Number((await sentinel.cli('sentinel', 'get-master-addr-by-name', NAME)).split('\n')[1])
}

async function isSettled(sentinel: RedisServer, { replicas = 2, sentinels = 3 }: SentinelOptions): Promise<boolean> {
  if (!(await sentinel.cli('sentinel', 'ckquorum', NAME).catch(() => ''))) return false
  const seen = fieldsOf(await sentinel.cli('sentinel', 'replicas', NAME), 'master-link-status')
  const peers = fieldsOf(await sentinel.cli('sentinel', 'sentinels', NAME), 'flags')
  const info = await sentinel.cli('info', 'sentinel')
  return (
    infoField(info, 'master0')?.includes('status=ok') === true &&
    isAll(seen, 'ok', replicas) &&
    isAll(peers, 'sentinel', sentinels - 1)
  )
}

/** All values of a field in an answer of `name`, `value` lines. */
function fieldsOf(answer: string, name: string): string[] {
  const lines = answer.split('\n')
  return lines.flatMap((line, at) => (line === name ? [lines[at + 1] ?? ''] : []))
}

function isAll(values: readonly string[], expected: string, count: number): boolean {
  return values.length === count && values.every((value) => value === expected)
}

async function all<Item>(items: readonly Item[], holds: (item: Item) => Promise<boolean>): Promise<boolean> {
  return (await Promise.all(items.map(holds))).every(Boolean)
}
