/** Processes that use one key at a quorum, and what must hold of what they are told. */

import { giveBack, giveBackUnknown } from '../../../src/request/give-back.ts'
import type { Claim } from '../../../src/store.ts'
import { QuorumRedisStore } from '../../../src/stores/redis/index.ts'
import { Member, Network, type Weakness } from './network-model.ts'
import { randomOf, VirtualTime } from './virtual-time.ts'

/** Longer than a member is down, so that a claim outlives what a member has forgotten. */
const LONG_LEASE_MS = 1_200
/** As long as a claim may take, or as a late reply, or longer than anything. */
const LEASES_MS = [110, 400, LONG_LEASE_MS]
const TTL_MS = 1_000_000
const MEMBER_TIMEOUT_MS = 100
const KEY = 'key'

/**
 * `network`: all members keep their data; any request or reply may be lost, late, or overtaken.
 * `member`: one member is down now and then, for longer than a call takes, and comes back empty; the others are well.
 */
export type Trouble = 'network' | 'member'

/** A claim that was answered `claimed`, and what its owner may believe and has done. */
interface Owner {
  readonly claim: Claim
  readonly askedAt: number
  readonly claimedAt: number
  /** Until when the owner may rely on it. */
  until: number
  completedAt?: number
  /** When it gave the key up to be forgotten, without having been overtaken. */
  releasedAt?: number
}

/** What happened in one schedule. */
export interface History {
  readonly owners: Owner[]
  readonly faults: string[]
  counts: { claimed: number; replayed: number; unknown: number; takenOver: number; completed: number; wiped: number }
}

/** Runs one schedule; all of it follows from the seed. */
export async function runSchedule(
  seed: number,
  trouble: Trouble,
  members = 3,
  weakness: Weakness | undefined = undefined,
): Promise<History> {
  const random = randomOf(seed)
  const time = new VirtualTime(random)
  time.install()
  try {
    const servers = Array.from({ length: members }, () => new Member(time, weakness))
    const world = new World(time, random, trouble, servers)
    const clients = Array.from({ length: 3 }, (_, client) => world.client(client))
    void Promise.all(clients)
    await time.run()
    return world.history
  } finally {
    time.uninstall()
  }
}

class World {
  readonly history: History = {
    owners: [],
    faults: [],
    counts: { claimed: 0, replayed: 0, unknown: 0, takenOver: 0, completed: 0, wiped: 0 },
  }
  readonly #time: VirtualTime
  readonly #random: () => number
  readonly #network: Network
  readonly #members: readonly Member[]
  readonly #leaseMs: number

  constructor(time: VirtualTime, random: () => number, trouble: Trouble, members: readonly Member[]) {
    this.#time = time
    this.#random = random
    this.#network = new Network(time, random, trouble === 'network')
    this.#members = members
    this.#leaseMs = trouble === 'member' ? LONG_LEASE_MS : (LEASES_MS[this.#below(3)] as number)
    if (trouble === 'member') void this.#crashes(members[this.#below(members.length)] as Member)
  }

  #below(limit: number): number {
    return Math.floor(this.#random() * limit)
  }

  async #crashes(member: Member): Promise<void> {
    for (let crash = 0; crash < 4; crash++) {
      await this.#time.sleep(this.#below(1_500))
      member.isDown = true
      await this.#time.sleep(3 * MEMBER_TIMEOUT_MS + this.#below(200))
      member.wipe()
      this.history.counts.wiped++
      member.isDown = false
    }
  }

  /** A process: a few requests with the key, one after the other. */
  async client(index: number): Promise<void> {
    const stores = this.#members.map((member) => this.#network.connect(member))
    const quorum = new QuorumRedisStore({ stores, memberTimeoutMs: MEMBER_TIMEOUT_MS })
    for (let request = 0; request < 4; request++) {
      await this.#time.sleep(this.#random() < 0.5 ? this.#below(8) : this.#below(600))
      await this.#request(quorum, `${index}-${request}`)
    }
  }

  async #request(quorum: QuorumRedisStore, token: string): Promise<void> {
    const { counts, owners } = this.history
    const askedAt = this.#time.now
    const asked = {
      scopedKey: KEY,
      fingerprint: 'f',
      token,
      leaseMs: this.#leaseMs,
      ttlMs: TTL_MS,
      takeOverExpired: true,
    }
    const result = await quorum.claim(asked).catch(() => undefined)
    if (result === undefined) {
      counts.unknown++
      await giveBackUnknown(quorum, { ...asked, fence: 0 }, TTL_MS).catch(() => false)
      return
    }
    if (result.outcome === 'exists') {
      if (result.record.state !== 'completed') return
      counts.replayed++
      return this.#checkReplay(askedAt, String(result.record.response?.body))
    }
    counts.claimed++
    if (result.takenOver !== 'no') counts.takenOver++
    const claimedAt = this.#time.now
    const until = askedAt + this.#leaseMs
    const owner: Owner = { claim: result.claim, askedAt, claimedAt, until }
    this.#checkClaim(owner)
    owners.push(owner)
    await this.#handle(quorum, owner)
  }

  async #handle(quorum: QuorumRedisStore, owner: Owner): Promise<void> {
    const endAt = this.#time.now + this.#below(this.#random() < 0.5 ? 50 : 1_500)
    while (endAt - this.#time.now > this.#leaseMs / 3) {
      await this.#time.sleep(this.#leaseMs / 3)
      const sentAt = this.#time.now
      const isOurs = await this.#write('renewed', owner, (claim) => quorum.renew(claim, this.#leaseMs))
      if (isOurs) owner.until = Math.max(owner.until, sentAt + this.#leaseMs)
    }
    await this.#time.sleep(endAt - this.#time.now)
    const choice = this.#random()
    if (choice > 0.8) return // it crashes
    owner.until = Math.min(owner.until, this.#time.now)
    if (choice < 0.35) return this.#complete(quorum, owner)
    if (choice < 0.65) return void (await this.#write('failed', owner, (claim) => quorum.fail(claim, TTL_MS)))
    if (owner.claim.fence === 1 && !this.#overtaker(owner)) owner.releasedAt = this.#time.now
    await this.#write('given back', owner, (claim) => giveBack(quorum, claim, TTL_MS))
  }

  async #complete(quorum: QuorumRedisStore, owner: Owner): Promise<void> {
    const response = { statusCode: 200, headers: {}, body: owner.claim.token, replayable: true }
    const complete = (claim: Claim) => this.#untilKnown(() => quorum.complete(claim, response, TTL_MS))
    if (!(await this.#write('completed', owner, complete))) return
    this.history.counts.completed++
    owner.completedAt = this.#time.now
  }

  /** As the plugin does with a completion whose answer is unknown. */
  async #untilKnown(write: () => Promise<boolean>): Promise<boolean> {
    for (let attempt = 1; attempt < 10; attempt++) {
      const isDone = await write().catch(() => undefined)
      if (isDone !== undefined) return isDone
      await this.#time.sleep(100)
    }
    return write()
  }

  /** A write by an owner, who must not be told that it was made when he had been overtaken before. */
  async #write(what: string, owner: Owner, write: (claim: Claim) => Promise<boolean>): Promise<boolean> {
    const overtaker = this.#overtaker(owner)
    const isDone = await write(owner.claim).catch(() => false)
    if (isDone && overtaker) this.#fault(`${owner.claim.token} was ${what} after ${overtaker.claim.token} took over`)
    return isDone
  }

  #overtaker(owner: Owner): Owner | undefined {
    return this.history.owners.find(({ claimedAt }) => claimedAt > owner.claimedAt)
  }

  #checkClaim(owner: Owner): void {
    const { claim, askedAt, claimedAt } = owner
    if (claimedAt - askedAt >= this.#leaseMs * 0.9) this.#fault(`${claim.token} got a lease that was as good as over`)
    for (const other of this.history.owners) {
      const names = `${claim.token} (fence ${claim.fence}) and ${other.claim.token} (fence ${other.claim.fence})`
      if (other.completedAt !== undefined) this.#fault(`${names}: claimed after completion`)
      if (other.until > claimedAt) this.#fault(`${names}: two owners at once`)
      const isRemembered = this.history.owners.every(({ releasedAt = 0 }) => releasedAt < other.claimedAt)
      if (isRemembered && other.claimedAt <= askedAt && other.claim.fence >= claim.fence) {
        this.#fault(`${names}: the fence did not grow`)
      }
    }
  }

  #checkReplay(askedAt: number, body: string): void {
    const completed = this.history.owners.find(({ completedAt }) => completedAt !== undefined && completedAt <= askedAt)
    if (completed && completed.claim.token !== body) {
      this.#fault(`${body} was replayed after ${completed.claim.token} had completed`)
    }
    if (!this.history.owners.some(({ claim }) => claim.token === body))
      this.#fault(`${body} was replayed but never ran`)
  }

  #fault(what: string): void {
    this.history.faults.push(`at ${Math.round(this.#time.now)} ms: ${what}`)
  }
}
