/** A Redis Cluster, formed by the state files that its nodes start from: no meeting, no waiting for gossip. */

import { randomBytes } from 'node:crypto'
import { BUS_OFFSET, eventually, freePorts } from './processes.ts'
import { infoField, type RedisServer, startAll, startRedis, stopAll } from './servers.ts'

export interface ClusterOptions {
  /** Default 3. */
  readonly masters?: number
  /** Per master. Default 1. */
  readonly replicas?: number
  /** Silence after which a node is taken for dead. Default 1000. */
  readonly nodeTimeoutMs?: number
  /** Further arguments of all nodes. */
  readonly args?: readonly string[]
  readonly aof?: 'always' | 'everysec' | 'no'
}

export interface ClusterTopology {
  /** For clients. */
  readonly nodes: readonly { readonly host: string; readonly port: number }[]
  /** All nodes; those that started as masters come first. */
  readonly servers: readonly RedisServer[]
  /** The node that owns the slot of the key at present. */
  masterOf(key: string): Promise<RedisServer>
  /** The nodes that follow this one at present, those that are killed or paused included. */
  replicasOf(master: RedisServer): Promise<readonly RedisServer[]>
  /** The id of a node, for CLUSTER SETSLOT and the like. */
  idOf(server: RedisServer): string
  stop(): Promise<void>
}

/** A node as its state file names it. */
interface Node {
  readonly id: string
  readonly port: number
  /** Its master's id; undefined: it is one. */
  readonly masterId: string | undefined
  /** `0-5460`; replicas have none. */
  readonly slots: string
  readonly epoch: number
}

/** A line of CLUSTER NODES. */
interface SeenNode {
  readonly id: string
  readonly flags: readonly string[]
  readonly masterId: string
  readonly epoch: number
  readonly slots: readonly string[]
}

const SLOTS = 16_384
const STATE_FILE = 'nodes.conf'

/** Ready when every node says `cluster_state:ok` and every replica is in step. */
export async function startCluster(options: ClusterOptions = {}): Promise<ClusterTopology> {
  const nodes = await planNodes(options)
  const servers = await startAll(nodes.map((node) => startNode(node, nodes, options)))
  try {
    await eventually('the cluster to be up', async () => (await Promise.all(servers.map(isUp))).every(Boolean))
  } catch (error) {
    await stopAll(servers)
    throw error
  }
  return describe(nodes, servers)
}

async function planNodes({ masters = 3, replicas = 1 }: ClusterOptions): Promise<Node[]> {
  const ports = await freePorts(masters * (1 + replicas))
  const ids = ports.map(() => randomBytes(20).toString('hex'))
  return ports.map((port, at) => {
    const index = at % masters
    const isMaster = at < masters
    return {
      id: ids[at] as string,
      port,
      masterId: isMaster ? undefined : (ids[index] as string),
      slots: isMaster ? slotRange(index, masters) : '',
      epoch: index + 1,
    }
  })
}

function slotRange(index: number, masters: number): string {
  const start = (at: number) => Math.floor((SLOTS * at) / masters)
  return `${start(index)}-${start(index + 1) - 1}`
}

function startNode(self: Node, nodes: readonly Node[], options: ClusterOptions): Promise<RedisServer> {
  const { nodeTimeoutMs = 1_000, args = [], aof = 'no' } = options
  const lastEpoch = Math.max(...nodes.map(({ epoch }) => epoch))
  const lines = nodes.map((node) => stateLine(node, node === self))
  const state = [...lines, `vars currentEpoch ${lastEpoch} lastVoteEpoch 0`, ''].join('\n')
  const cluster = ['--cluster-enabled', 'yes', '--cluster-config-file', STATE_FILE]
  const timing = ['--cluster-node-timeout', String(nodeTimeoutMs), '--repl-diskless-sync-delay', '0']
  const files = { [STATE_FILE]: state }
  return startRedis({ aof, port: self.port, files, args: [...cluster, ...timing, ...args] })
}

function stateLine({ id, port, masterId, slots, epoch }: Node, isSelf: boolean): string {
  const flags = `${isSelf ? 'myself,' : ''}${masterId ? 'slave' : 'master'}`
  return `${id} 127.0.0.1:${port}@${port + BUS_OFFSET} ${flags} ${masterId ?? '-'} 0 0 ${epoch} connected ${slots}`.trim()
}

async function isUp(server: RedisServer): Promise<boolean> {
  // A replica that loads its master's data answers with an error.
  const cluster = await server.cli('cluster', 'info').catch(() => '')
  if (infoField(cluster, 'cluster_state') !== 'ok') return false
  const link = infoField(await server.cli('info', 'replication'), 'master_link_status')
  return link === undefined || link === 'up'
}

function describe(nodes: readonly Node[], servers: readonly RedisServer[]): ClusterTopology {
  const idOf = (server: RedisServer) => nodes[servers.indexOf(server)]?.id as string
  const serverOf = (id: string) => servers[nodes.findIndex((node) => node.id === id)] as RedisServer
  return {
    nodes: servers.map(({ host, port }) => ({ host, port })),
    servers,
    idOf,
    masterOf: async (key) => serverOf(await ownerOf(key, servers)),
    replicasOf: async (master) => {
      const seen = await seenNodes(servers)
      return servers.filter((server) => latest(seen, idOf(server)).masterId === idOf(master))
    },
    stop: () => stopAll(servers),
  }
}

/** Of all that the nodes believe, the claim to the slot with the highest epoch is the one that prevails. */
async function ownerOf(key: string, servers: readonly RedisServer[]): Promise<string> {
  const slot = Number(await servers.find(({ isResponsive }) => isResponsive)?.cli('cluster', 'keyslot', key))
  const owners = (await seenNodes(servers)).filter((node) => isOwner(node, slot))
  const [owner] = owners.sort((one, other) => other.epoch - one.epoch)
  if (!owner) throw new Error(`no node owns slot ${slot}`)
  return owner.id
}

function isOwner({ flags, slots }: SeenNode, slot: number): boolean {
  if (!flags.includes('master') || flags.includes('fail')) return false
  return slots.some((range) => {
    const [first, last = first] = range.split('-').map(Number)
    return slot >= (first as number) && slot <= (last as number)
  })
}

function latest(seen: readonly SeenNode[], id: string): SeenNode {
  const [newest] = seen.filter((node) => node.id === id).sort((one, other) => other.epoch - one.epoch)
  if (!newest) throw new Error(`nobody knows node ${id}`)
  return newest
}

/** What each responsive node says of all nodes, one view after the other. */
async function seenNodes(servers: readonly RedisServer[]): Promise<SeenNode[]> {
  const asked = servers.filter(({ isResponsive }) => isResponsive)
  const views = await Promise.all(asked.map((server) => server.cli('cluster', 'nodes').catch(() => '')))
  return views.flatMap((view) => view.split('\n').filter(Boolean).map(seenNode))
}

function seenNode(line: string): SeenNode {
  const [id = '', , flags = '', masterId = '', , , epoch, , ...slots] = line.split(' ')
  return { id, flags: flags.split(','), masterId, epoch: Number(epoch), slots }
}
