/** What failovers of real topologies do to acknowledged claims, measured for several replication policies. */

import assert from 'node:assert/strict'
import { type TestContext, test } from 'node:test'
import { Redis } from 'ioredis'
import { connect } from '../src/stores/redis/client.ts'
import { type RedisClient, RedisStore, type RedisStoreSettings } from '../src/stores/redis/index.ts'
import { type ClusterTopology, startCluster } from './support/redis/cluster.ts'
import {
  ClaimLoad,
  fill,
  freshRequest,
  isReplica,
  type Outcome,
  patiently,
  replicationLags,
} from './support/redis/failover.ts'
import { eventually } from './support/redis/processes.ts'
import { startProxy } from './support/redis/proxy.ts'
import { type SentinelTopology, startSentinel } from './support/redis/sentinel.ts'
import { type RedisServer, startRedis } from './support/redis/servers.ts'

interface Policy {
  readonly name: string
  readonly store: RedisStoreSettings & { readonly waitReplicas: number }
  /** Settings of all servers that can be master. */
  readonly servers: { readonly aof?: 'always'; readonly args?: readonly string[] }
}

function strictServers(replicas: number): Policy['servers'] {
  return { aof: 'always', args: ['--min-replicas-to-write', String(replicas), '--min-replicas-max-lag', '1'] }
}

const DEFAULTS: Policy = { name: 'defaults', store: { waitReplicas: 0 }, servers: {} }
const WAIT: Policy = { name: 'waitReplicas: 1', store: { waitReplicas: 1 }, servers: {} }
const FULL: Policy = { name: 'full', store: { waitReplicas: 1 }, servers: strictServers(1) }
/** Where the failover is not announced to the master, each replica that can be promoted must have each claim. */
const FULL_ALL: Policy = { name: 'full, both replicas', store: { waitReplicas: 2 }, servers: strictServers(2) }

const CLIENTS = 4
const CLAIMERS_PER_CLIENT = 4
/** Acknowledged before the event, and again after it. */
const SOME_CLAIMS = 400
const MIB = 1_048_576

/** A topology, and how the store is told of it. */
interface Place<Topology> {
  readonly topology: Topology
  readonly connect: (settings: RedisStoreSettings) => RedisStore
  readonly keyPrefix: string
}

/** A topology under load: what an event is made to happen to. */
interface Scene<Topology> {
  readonly topology: Topology
  readonly policy: Policy
  readonly load: ClaimLoad
  readonly clients: readonly RedisStore[]
  /** A store that knows one server only: a client that the news of the failover does not reach. */
  readonly cutOffWith: (server: RedisServer) => RedisStore
}

/** Brings an event about. Resolves when there is another master, and no server takes writes that should not. */
type Event<Topology> = (scene: Scene<Topology>) => Promise<void>

type Sentinel = Event<SentinelTopology>

const planned: Sentinel = async ({ topology }) => {
  const old = await topology.master()
  await failOver(topology, old)
}

const plannedFenced: Sentinel = async ({ topology }) => {
  const old = await topology.master()
  // No master has so many replicas: it refuses writes from now on, while its replicas take what it has written.
  await old.cli('CONFIG', 'SET', 'min-replicas-to-write', 99)
  await eventually('the replicas to have everything', async () =>
    (await replicationLags(old)).every((lag) => lag === 0),
  )
  await failOver(topology, old)
}

async function failOver(topology: SentinelTopology, old: RedisServer): Promise<void> {
  await topology.sentinelServers[0]?.cli('SENTINEL', 'FAILOVER', topology.name)
  await otherMasterThan(old, topology)
  // It takes writes until then.
  await follows(old)
}

const forced: Sentinel = async ({ topology, policy, load }) => {
  const old = await topology.master()
  const replicas = await topology.replicas()
  await Promise.all(replicas.map((replica) => replica.pause()))
  await fill(old)
  // Claims that no replica can know of: without WAIT they are acknowledged, with it they are refused.
  await (policy.store.waitReplicas === 0 ? load.more(SOME_CLAIMS) : load.moreUnknown(CLIENTS))
  const lags = await replicationLags(old)
  assert.equal(lags.length, replicas.length)
  assert.ok(Math.min(...lags) > 20 * MIB, `the replicas are only ${lags} bytes behind`)
  await old.kill()
  for (const replica of replicas) replica.resume()
  await otherMasterThan(old, topology)
  if (policy.store.waitReplicas < replicas.length) return
  // One replica is left: who waits for two takes nothing before the dead server is back.
  await old.restart()
  await follows(old)
}

const resumed: Sentinel = async ({ topology, load, clients, cutOffWith }) => {
  const old = await topology.master()
  for (const client of clients) {
    const cutOff = cutOffWith(old)
    await cutOff.check()
    load.add(cutOff, client)
    load.add(client, cutOff)
  }
  await old.pause()
  await otherMasterThan(old, topology)
  old.resume()
  await follows(old)
}

function follows(old: RedisServer): Promise<void> {
  return patiently('the old master to follow', () => isReplica(old))
}

async function otherMasterThan(old: RedisServer, topology: SentinelTopology): Promise<void> {
  await eventually('another master', async () => (await topology.master()) !== old)
}

/** All claims go to one master: the one that is killed. */
const HASH_TAG = '{claims}'

const killed: Event<ClusterTopology> = async ({ topology }) => {
  const old = await topology.masterOf(HASH_TAG)
  await old.kill()
  const owner = () => topology.masterOf(HASH_TAG).catch(() => old) // for a moment nobody owns the slot
  await eventually('another master', async () => (await owner()) !== old)
  // Its only replica is master now: who waits for one takes nothing before the dead server is back.
  await old.restart()
  await follows(old)
}

/** The Cluster's own manual failover: the master holds its clients until the replica has everything. */
const handedOver: Event<ClusterTopology> = async ({ topology }) => {
  const old = await topology.masterOf(HASH_TAG)
  const [replica] = await topology.replicasOf(old)
  await replica?.cli('CLUSTER', 'FAILOVER')
  await follows(old)
  await eventually('another master', async () => (await topology.masterOf(HASH_TAG)) === replica)
}

/** Claims under load, the event, claims by the new master, and then each acknowledged key once more. */
async function measure<Topology extends { stop(): Promise<void> }>(
  t: TestContext,
  policy: Policy,
  { topology, connect, keyPrefix }: Place<Topology>,
  event: Event<Topology>,
): Promise<Outcome> {
  t.after(() => topology.stop())
  const keep = closedAfter(t)
  const clients = Array.from({ length: CLIENTS }, () => keep(connect(policy.store)))
  const judge = keep(connect({}))
  await Promise.all([...clients, judge].map((store) => store.check()))
  const load = startLoad(t, keyPrefix, clients)
  const cutOffWith = ({ url }: RedisServer) => {
    const store = keep(new RedisStore({ url, ...policy.store }))
    load.markCutOff(store)
    return store
  }
  await load.more(SOME_CLAIMS)
  await event({ topology, policy, load, clients, cutOffWith })
  await load.more(SOME_CLAIMS)
  await load.stop()
  return load.outcome(judge)
}

function closedAfter(t: TestContext) {
  return (store: RedisStore): RedisStore => {
    t.after(() => store.close())
    return store
  }
}

function startLoad(t: TestContext, keyPrefix: string, clients: readonly RedisStore[]): ClaimLoad {
  const load = new ClaimLoad(keyPrefix)
  t.after(() => load.stop())
  clients.forEach((first, at) => {
    const second = clients[(at + 1) % clients.length] as RedisStore
    for (let i = 0; i < CLAIMERS_PER_CLIENT; i++) load.add(first, second)
  })
  return load
}

async function inSentinel({ servers }: Policy): Promise<Place<SentinelTopology>> {
  const topology = await startSentinel(servers)
  const { sentinels, name } = topology
  return { topology, keyPrefix: '', connect: (settings) => new RedisStore({ sentinels, name, ...settings }) }
}

async function inCluster({ servers }: Policy): Promise<Place<ClusterTopology>> {
  const topology = await startCluster(servers)
  const { nodes } = topology
  return { topology, keyPrefix: HASH_TAG, connect: (settings) => new RedisStore({ nodes, ...settings }) }
}

interface Run {
  readonly event: string
  readonly policy: Policy
  /** `any`: depends on the moment, and is only measured. */
  readonly losses: 'none' | 'some' | 'any'
  readonly perform: (t: TestContext) => Promise<Outcome>
}

type Expected = readonly (readonly [policy: Policy, losses: Run['losses']])[]

function sentinelRuns(event: string, act: Sentinel, expected: Expected): Run[] {
  return runsIn(inSentinel, event, act, expected)
}

function clusterRuns(event: string, act: Event<ClusterTopology>, expected: Expected): Run[] {
  return runsIn(inCluster, event, act, expected)
}

function runsIn<Topology extends { stop(): Promise<void> }>(
  start: (policy: Policy) => Promise<Place<Topology>>,
  event: string,
  act: Event<Topology>,
  expected: Expected,
): Run[] {
  return expected.map(([policy, losses]) => {
    const perform = async (t: TestContext) => measure(t, policy, await start(policy), act)
    return { event, policy, losses, perform }
  })
}

const RUNS: readonly Run[] = [
  ...sentinelRuns('Sentinel 1+2+3: planned', planned, [
    [DEFAULTS, 'some'],
    [WAIT, 'any'],
    // The replica that is not promoted goes on confirming what the old master writes, until it is told to follow.
    [FULL, 'any'],
    [FULL_ALL, 'none'],
  ]),
  ...sentinelRuns('Sentinel 1+2+3: planned, writes refused first', plannedFenced, [
    [DEFAULTS, 'any'],
    [FULL, 'none'],
  ]),
  ...sentinelRuns('Sentinel 1+2+3: master killed, replicas behind', forced, [
    [DEFAULTS, 'some'],
    [WAIT, 'none'],
    [FULL, 'none'],
    [FULL_ALL, 'none'],
  ]),
  ...sentinelRuns('Sentinel 1+2+3: old master resumed', resumed, [
    [DEFAULTS, 'some'],
    [WAIT, 'any'],
    [FULL, 'none'],
    [FULL_ALL, 'none'],
  ]),
  ...clusterRuns('Cluster 3+3: master killed', killed, [
    [DEFAULTS, 'any'],
    [WAIT, 'any'],
    [FULL, 'none'],
  ]),
  ...clusterRuns('Cluster 3+3: CLUSTER FAILOVER', handedOver, [
    [DEFAULTS, 'any'],
    [FULL, 'none'],
  ]),
]

type Row = readonly (string | number)[]

const HEADINGS: Row = ['event', 'policy', 'acknowledged', 'lost', 'run twice', 'unknown', 'longest gap, ms']

function rowOf({ event, policy }: Run, { acknowledged, lost, runTwice, unknown, gapMs }: Outcome): Row {
  return [event, policy.name, acknowledged, lost, runTwice, unknown, gapMs]
}

function table(rows: readonly Row[]): string[] {
  const lines = [HEADINGS, HEADINGS.map(() => '---'), ...rows]
  return lines.map((cells) => `| ${cells.join(' | ')} |`)
}

test('failover', { concurrency: 4, timeout: 180_000 }, async (t) => {
  const rows = new Map<Run, Row>()
  const runs = RUNS.map((run) =>
    t.test(`${run.event}; ${run.policy.name}`, async (each) => {
      const outcome = await run.perform(each)
      rows.set(run, rowOf(run, outcome))
      assertAsExpected(run, outcome)
    }),
  )
  await Promise.all(runs)
  const measured = RUNS.map((run) => rows.get(run)).filter((row) => row !== undefined)
  for (const line of table(measured)) t.diagnostic(line)
})

function assertAsExpected({ losses }: Run, outcome: Outcome): void {
  const { acknowledged, lost, runTwice } = outcome
  const measured = JSON.stringify(outcome)
  assert.ok(acknowledged >= 2 * SOME_CLAIMS, measured)
  if (losses === 'none') assert.deepEqual({ lost, runTwice }, { lost: 0, runTwice: 0 }, measured)
  if (losses === 'some') assert.ok(lost + runTwice > 0, `nothing was lost: the event proves nothing ${measured}`)
}

/** A master without persistence whose only replica stands still, so that WAIT waits. */
async function stalledPair(t: TestContext) {
  const args = ['--repl-diskless-sync-delay', '0']
  const master = await startRedis({ args })
  t.after(() => master.stop())
  const replica = await startRedis({ args: [...args, '--replicaof', master.host, String(master.port)] })
  t.after(() => replica.stop())
  await eventually('the replica to be online', async () => /state=online/.test(await master.cli('info', 'replication')))
  await replica.pause()
  return { master, replica }
}

test('a WAIT that the driver sends again to a server without the claim does not confirm it', {
  timeout: 60_000,
}, async (t) => {
  const { master, replica } = await stalledPair(t)
  const client = new Redis(master.url) // which sends again what was not answered
  client.on('error', () => {})
  t.after(() => client.disconnect())
  const store = new RedisStore({ client: client as unknown as RedisClient, waitReplicas: 1, waitTimeoutMs: 5_000 })
  await store.check()
  // The first WAIT blocks the connection; those of the others are behind it, unanswered, when the server is gone.
  const claims = Promise.allSettled(['a', 'b', 'c'].map((key) => store.claim(freshRequest(key))))
  await eventually('the claims to be in Redis', async () => (await master.cli('DBSIZE')) === '3')
  await master.kill()
  await master.restart()
  assert.equal(await master.cli('DBSIZE'), '0')
  replica.resume()
  const confirmed = (await claims).filter(({ status }) => status === 'fulfilled')
  assert.equal(confirmed.length, 0, 'claims that count although no server has them')
})

test('every client that the store built comes back after a failover', {
  timeout: 90_000,
}, async (t) => {
  const topology = await startSentinel({})
  t.after(() => topology.stop())
  const [sentinel] = topology.sentinelServers as [RedisServer]
  const proxy = await startProxy(sentinel)
  t.after(() => proxy.stop())
  const clients = Array.from({ length: 20 }, () => connect({ sentinels: [proxy], name: topology.name }, 0))
  t.after(() => clients.forEach((client) => void client.disconnect()))
  await eventually('the clients to be ready', () => clients.every(({ client }) => client.status === 'ready'))
  await eventually('the clients to listen to the Sentinel', async () => {
    const listening = (await sentinel.cli('CLIENT', 'LIST')).match(/ sub=1 /g) ?? []
    return listening.length >= clients.length
  })
  // So that the clients are asking for the master most of the time.
  proxy.delay(300)
  const old = await topology.master()
  await old.kill()
  await otherMasterThan(old, topology)
  await eventually('all clients to be back', () => clients.every(({ client }) => client.status === 'ready'))
})
