/** Members of a quorum in memory, and a network that loses, delays and reorders what is sent to them. */

import type { StoredResponse } from '../../../src/response.ts'
import type { Claim, ClaimRequest, ClaimResult, IdempotencyRecord, RecordState } from '../../../src/store.ts'
import type { Member as QuorumMember } from '../../../src/stores/redis/vote.ts'
import type { VirtualTime } from './virtual-time.ts'

interface Kept {
  record: IdempotencyRecord
  leaseUntil: number
}

/** What a member may do wrong, to see that it shows. */
export type Weakness = 'writes by token alone' | 'forgets what is given back' | 'releases without a fence'

/** A server that can be down, and forget: one key, and what a `RedisStore` makes of it. Nothing here lives to its TTL. */
export class Member {
  isDown = false
  #kept: Kept | undefined
  readonly #time: VirtualTime
  readonly #weakness: Weakness | undefined

  constructor(time: VirtualTime, weakness?: Weakness) {
    this.#time = time
    this.#weakness = weakness
  }

  wipe(): void {
    this.#kept = undefined
  }

  claim({ scopedKey, fingerprint, token, leaseMs }: ClaimRequest): ClaimResult {
    const found = this.read()
    if (found?.state === 'pending' && found.token === token)
      return { outcome: 'claimed', claim: found, takenOver: 'no' }
    const isFree =
      found === undefined || found.state === 'failed' || (found.state === 'pending' && found.leaseRemainingMs === 0)
    if (!isFree || found?.token === token) return { outcome: 'exists', record: found as IdempotencyRecord }
    const claim = { scopedKey, fingerprint, token, fence: (found?.fence ?? 0) + 1 }
    this.#keep({ ...claim, state: 'pending', leaseRemainingMs: 0 }, leaseMs)
    const why = found?.state === 'failed' ? 'failed' : 'expired'
    return { outcome: 'claimed', claim, takenOver: found === undefined ? 'no' : why }
  }

  complete(claim: Claim, response: StoredResponse): boolean {
    if (!this.#isOwner(claim, 'completed')) return false
    return this.#keep({ ...claim, state: 'completed', leaseRemainingMs: 0, response })
  }

  fail(claim: Claim): boolean {
    return this.#isOwner(claim, 'failed') && this.#keep({ ...claim, state: 'failed', leaseRemainingMs: 0 })
  }

  renew(claim: Claim, leaseMs: number): boolean {
    return this.#isOwner(claim, 'pending') && this.#keep({ ...claim, state: 'pending', leaseRemainingMs: 0 }, leaseMs)
  }

  release(claim: Claim): boolean {
    const unknown = this.#weakness === 'releases without a fence' ? Number.POSITIVE_INFINITY : 1
    if (!this.#isOwner({ ...claim, fence: claim.fence || unknown }, 'failed')) return false
    this.#kept = undefined
    return true
  }

  giveBack(claim: Claim): boolean {
    if (!this.#isOwner(claim, 'pending') || this.#kept?.record.fence !== claim.fence) return false
    if (claim.fence === 1 || this.#weakness === 'forgets what is given back') return this.release(claim)
    return this.#keep({ ...claim, token: '', fence: claim.fence - 1, state: 'failed', leaseRemainingMs: 0 })
  }

  read(): IdempotencyRecord | undefined {
    if (this.#kept === undefined) return undefined
    const { record, leaseUntil } = this.#kept
    return { ...record, leaseRemainingMs: Math.max(0, leaseUntil - this.#time.now) }
  }

  #keep(record: IdempotencyRecord, leaseMs = 0): true {
    this.#kept = { record, leaseUntil: this.#time.now + leaseMs }
    return true
  }

  #isOwner({ token, fence }: Claim, orAlready: RecordState): boolean {
    const record = this.#kept?.record
    if (record?.token !== token) return false
    if (record.fence > fence && this.#weakness !== 'writes by token alone') return false
    return record.state === 'pending' || record.state === orAlready
  }
}

/** What lies between processes and members. */
export class Network {
  readonly #time: VirtualTime
  readonly #random: () => number
  readonly #isBad: boolean

  /** @param isBad are requests and replies lost, late and overtaken? */
  constructor(time: VirtualTime, random: () => number, isBad: boolean) {
    this.#time = time
    this.#random = random
    this.#isBad = isBad
  }

  /** A connection of one process to one member. */
  connect(member: Member): QuorumMember {
    const link: Link = { arrivesAt: 0, repliesAt: 0 }
    const through =
      (operation: 'claim' | 'complete' | 'fail' | 'renew' | 'release' | 'giveBack' | 'read') =>
      (...args: unknown[]): Promise<never> =>
        this.#travel(member, link, () => (member[operation] as (...args: unknown[]) => never).apply(member, args))
    return {
      name: 'member',
      claim: through('claim'),
      complete: through('complete'),
      fail: through('fail'),
      renew: through('renew'),
      release: through('release'),
      giveBack: through('giveBack'),
      read: through('read'),
    }
  }

  // What is sent on a connection arrives in order, and so do the replies, unless it breaks.
  async #travel<Result>(member: Member, link: Link, perform: () => Result): Promise<Result> {
    if (this.#happens(0.04)) return this.#lose(() => {})
    if (this.#happens(0.04)) return this.#lose(() => void this.#time.after(this.#random() * 600, () => void perform()))
    link.arrivesAt = Math.max(link.arrivesAt, this.#time.now + this.#latencyMs())
    await this.#time.sleep(link.arrivesAt - this.#time.now)
    if (member.isDown) throw new Error('refused')
    const result = perform()
    if (this.#happens(0.04)) return this.#lose(() => {})
    link.repliesAt = Math.max(link.repliesAt, this.#time.now + this.#latencyMs())
    await this.#time.sleep(link.repliesAt - this.#time.now)
    return result
  }

  #happens(share: number): boolean {
    return this.#isBad && this.#random() < share
  }

  async #lose(meanwhile: () => void): Promise<never> {
    meanwhile()
    await this.#time.sleep(this.#latencyMs())
    throw new Error('the connection is gone')
  }

  #latencyMs(): number {
    const kind = this.#isBad ? this.#random() : 0
    if (kind < 0.85) return this.#random() * 5
    return this.#random() * (kind < 0.95 ? 100 : 900)
  }
}

interface Link {
  arrivesAt: number
  repliesAt: number
}
