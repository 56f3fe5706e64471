/** One claim at N independent members: votes, split votes, and giving back what did not become a majority. */

import { randomInt, randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Claim, ClaimRequest, ClaimResult, IdempotencyRecord, IdempotencyStore } from '../../store.ts'
import { agreedRecord, completedRecord, majorityOf, newestRecord, noMajority, poll, reachedBy } from './majority.ts'

type Claimed = ClaimResult & { outcome: 'claimed' }

/** A lease with less left than this share of it is too short to start a handler under, as in the core. */
const LEASE_MARGIN = 0.1

const LONGEST_PAUSE_MS = 32

/** Has so much of a lease passed since `startedAt` that what was asked for then is not to be relied on? */
export function isSpent(leaseMs: number, startedAt: number): boolean {
  return performance.now() - startedAt >= leaseMs * (1 - LEASE_MARGIN)
}

/** What one member says in one claim. */
class Vote {
  answer: ClaimResult | undefined
  /** Why there is no answer, when the member has failed; the claim may have been made all the same. */
  error: unknown
  readonly #member: IdempotencyStore
  readonly #request: ClaimRequest
  #asking: Promise<ClaimResult> | undefined
  #givenBack: Promise<unknown> | undefined

  constructor(member: IdempotencyStore, request: ClaimRequest) {
    this.#member = member
    this.#request = request
  }

  /** The claim that this member has given, if it has. */
  get claimed(): Claimed | undefined {
    return this.answer?.outcome === 'claimed' ? this.answer : undefined
  }

  get record(): IdempotencyRecord | undefined {
    return this.answer?.outcome === 'exists' ? this.answer.record : undefined
  }

  /**
   * The fence that this member gives, or would give when its record was taken over: whoever holds it for the moment may
   * be the claim before ours, about to end. A silent member may know of any.
   */
  get fence(): number {
    if (this.record !== undefined) return this.record.fence + 1
    return this.claimed?.claim.fence ?? Number.POSITIVE_INFINITY
  }

  /** Does somebody else hold this member? */
  get isHeld(): boolean {
    return this.record !== undefined && isHeld(this.record)
  }

  look(): Promise<IdempotencyRecord | undefined> {
    return this.#member.read(this.#request.scopedKey)
  }

  /** Asks for the claim, unless the member has given it, or is still being asked. */
  ask(): Promise<ClaimResult> {
    if (this.claimed !== undefined) return Promise.resolve(this.claimed)
    this.#asking ??= this.#send().finally(() => {
      this.#asking = undefined
    })
    return this.#asking
  }

  // Only after what was given back before is known to be gone: a release by this token that is still under way could
  // otherwise take away a vote that has been counted.
  async #send(): Promise<ClaimResult> {
    this.answer = undefined
    this.error = undefined
    try {
      if (this.#givenBack !== undefined) await this.#givenBack
      this.answer = await this.#member.claim(this.#request)
      return this.answer
    } catch (error) {
      this.error = error
      throw error
    }
  }

  /**
   * Gives the member's claim back. A free key becomes free again; one that was taken over becomes a failed record with
   * the fence it had: deleting it would let the fences start anew.
   */
  giveBack(): Promise<unknown> {
    const claim = this.claimed?.claim
    if (claim === undefined) return Promise.resolve()
    this.answer = undefined
    this.#givenBack = claim.fence === 1 ? this.#member.release(claim) : this.#lower(claim, claim.fence - 1)
    return this.#givenBack
  }

  #lower(claim: Claim, fence: number): Promise<boolean> {
    return this.#member.fail({ ...claim, fence }, this.#request.ttlMs)
  }

  /** Makes the member give this fence when it is asked again, which takes a second token: nobody takes over himself. */
  async raise(fence: number): Promise<void> {
    const claim = this.claimed?.claim
    if (claim === undefined) return
    this.answer = undefined
    this.#givenBack = this.#raise(claim, fence)
    await this.#givenBack
  }

  async #raise(claim: Claim, fence: number): Promise<void> {
    await this.#lower(claim, fence - 1)
    const stepping = await this.#member.claim({ ...this.#request, token: randomUUID() })
    if (stepping.outcome === 'claimed') await this.#lower(stepping.claim, fence - 1)
  }

  /** For good: gives back also what the member gives late, or may have given without our hearing of it. */
  async drop(): Promise<void> {
    await this.#asking?.catch(() => {})
    if (this.claimed !== undefined) await this.giveBack()
    else if (this.error !== undefined) await this.#member.release({ ...this.#request, fence: 0 })
  }
}

/** A claim of one key at all members. */
export class QuorumClaim {
  readonly #request: ClaimRequest
  readonly #timeoutMs: number
  readonly #inBackground: (work: Promise<unknown>) => void
  readonly #majority: number
  readonly #votes: readonly Vote[]
  readonly #startedAt = performance.now()
  /** Members that a rival has for the moment, after the claim has been won. */
  readonly #contended = new Set<Vote>()
  #isEnding = false

  /**
   * @param timeoutMs how long a member is waited for, and how long a split vote is tried to be settled
   * @param inBackground is given the work that the answer does not wait for
   */
  constructor(
    members: readonly IdempotencyStore[],
    request: ClaimRequest,
    timeoutMs: number,
    inBackground: (work: Promise<unknown>) => void,
  ) {
    this.#request = request
    this.#timeoutMs = timeoutMs
    this.#inBackground = inBackground
    this.#majority = majorityOf(members.length)
    this.#votes = members.map((member) => new Vote(member, request))
  }

  /**
   * Claims, or returns the record that a majority knows.
   * @throws Error when nothing can be known, or the lease is as good as over; what was taken is given back
   */
  async run(): Promise<ClaimResult> {
    for (let round = 1; ; round++) {
      const result = await this.#vote()
      if (result?.outcome === 'exists') return this.#giveUp(result)
      if (isSpent(this.#request.leaseMs, this.#startedAt)) throw this.#giveUp(this.#unknown('not within its lease'))
      if (result !== undefined) return result
      if (this.#heard.length < this.#majority) throw this.#giveUp(this.#unknown('too few answers'))
      if (this.#isLateBy(1)) throw this.#giveUp(this.#unknown('rivals have the others'))
      const rivals = await this.#settle(round)
      if (rivals !== undefined) return this.#giveUp(rivals)
    }
  }

  /**
   * Once won: takes also the members that have not answered yet, or that a rival is giving back, so that the record is
   * on all of them, and its end with it.
   * @returns when nothing is left to take
   */
  async takeOthers(): Promise<void> {
    await Promise.allSettled(this.#votes.map((vote) => this.#take(vote)))
  }

  async #take(vote: Vote): Promise<void> {
    try {
      while (!this.#isEnding && vote.claimed === undefined) {
        await vote.ask()
        if (!vote.isHeld || this.#isLateBy(0.25)) return
        this.#contended.add(vote)
        await sleep(1)
      }
    } finally {
      this.#contended.delete(vote)
    }
  }

  /** Before the end of the claim is written: what a rival is about to give back is waited for, silence is not. */
  async end(): Promise<void> {
    while (this.#contended.size > 0) await sleep(1)
    this.#isEnding = true
  }

  get #heard(): readonly Vote[] {
    return this.#votes.filter(({ answer }) => answer !== undefined)
  }

  get #records(): IdempotencyRecord[] {
    return this.#votes.flatMap(({ record }) => record ?? [])
  }

  get #ours(): readonly Vote[] {
    return this.#votes.filter(({ claimed }) => claimed !== undefined)
  }

  #isLateBy(share: number): boolean {
    return performance.now() - this.#startedAt >= this.#timeoutMs * share
  }

  async #vote(): Promise<ClaimResult | undefined> {
    const patience = { timeoutMs: this.#timeoutMs, enough: this.#majority }
    const calls = this.#votes.map((vote) => vote.ask())
    const result = await poll(calls, patience, () => this.#certain())
    if (result === 'unknown' || this.#heard.length < this.#majority) return undefined
    if (result !== undefined) return result
    const record = this.#bestRecord
    return record && { outcome: 'exists', record }
  }

  /** When no majority agrees, the record that forbids to run all the same. */
  get #bestRecord(): IdempotencyRecord | undefined {
    // A completed record stands for a run that happened: unless a majority has overtaken it, it is the answer.
    const completed = completedRecord(this.#records)
    if (completed !== undefined) return completed
    // Nobody is there whose stepping back would change anything.
    const isStill = this.#ours.length === 0 && !this.#votes.some(({ isHeld }) => isHeld)
    return isStill ? newestRecord(this.#records) : undefined
  }

  /** The answer that the members who are still silent cannot change. */
  #certain(): ClaimResult | 'unknown' | undefined {
    const record = agreedRecord(this.#records, this.#majority)
    if (record !== undefined) return { outcome: 'exists', record }
    if (this.#ours.length >= this.#majority) return this.#claimed()
    const failed = this.#votes.filter(({ answer, error }) => answer === undefined && error !== undefined)
    return failed.length > this.#votes.length - this.#majority ? 'unknown' : undefined
  }

  #claimed(): ClaimResult | undefined {
    const fence = this.#fence
    const granted = this.#ours.filter((vote) => vote.fence >= fence)
    if (granted.length < this.#majority) return undefined
    // With the same fence or a higher one it was not overtaken by this claim: members have lost what they knew of it.
    if ((completedRecord(this.#records)?.fence ?? 0) >= fence) return undefined
    const { scopedKey, fingerprint, token } = this.#request
    return { outcome: 'claimed', claim: { scopedKey, fingerprint, token, fence }, takenOver: takenOver(granted) }
  }

  /** The fence that a majority reaches, were each silent member to know of the highest. */
  get #fence(): number {
    return reachedBy(
      this.#majority,
      this.#votes.map(({ fence }) => fence),
    )
  }

  /**
   * Nobody has a majority, or ours disagree about the fence. One of the rivals stays, and asks again soon; the others
   * step back.
   * @returns the record of the rival who has won in the meantime
   */
  async #settle(round: number): Promise<ClaimResult | undefined> {
    const pauseMs = Math.min(2 ** round, LONGEST_PAUSE_MS)
    const hasMajority = this.#ours.length >= this.#majority
    if (!hasMajority && !this.#isFirst) return this.#stepBack(pauseMs)
    if (hasMajority && !this.#isWaiting) await this.#bounded(this.#raiseFences())
    else await sleep(1)
    return undefined
  }

  /** Is the first member that anybody holds ours? All rivals who hear the same members agree on who stays. */
  get #isFirst(): boolean {
    return this.#votes.find(({ claimed, isHeld }) => claimed !== undefined || isHeld)?.claimed !== undefined
  }

  /** Will one say more that is silent, or held by a rival? Fences are raised without it only after half of the time. */
  get #isWaiting(): boolean {
    if (this.#isLateBy(0.5)) return false
    return this.#votes.some(({ answer, error, isHeld }) => isHeld || (answer === undefined && error === undefined))
  }

  #raiseFences(): Promise<unknown> {
    const fence = this.#fence
    return Promise.allSettled(this.#ours.filter((vote) => vote.fence < fence).map((vote) => vote.raise(fence)))
  }

  // Reads until it is worth asking again: a claim would take members from the rival who stays, if only for a moment.
  async #stepBack(pauseMs: number): Promise<ClaimResult | undefined> {
    await this.#bounded(Promise.allSettled(this.#ours.map((vote) => vote.giveBack())))
    for (;;) {
      await sleep(pauseMs + randomInt(2 * pauseMs))
      const records = await this.#look()
      const record = agreedRecord(records, this.#majority)
      if (record !== undefined && (record.state === 'completed' || isHeld(record))) return { outcome: 'exists', record }
      const isFree = records.filter(isHeld).length <= this.#votes.length - this.#majority
      if (record !== undefined || isFree || this.#isLateBy(1)) return undefined
    }
  }

  async #look(): Promise<IdempotencyRecord[]> {
    const patience = { timeoutMs: this.#timeoutMs, enough: this.#majority }
    const records: IdempotencyRecord[] = []
    const calls = this.#votes.map(async (vote) => {
      const record = await vote.look()
      if (record !== undefined) records.push(record)
    })
    await poll(calls, patience, () => undefined)
    return [...records]
  }

  async #bounded(work: Promise<unknown>): Promise<void> {
    await poll([work], { timeoutMs: this.#timeoutMs }, () => undefined)
  }

  #giveUp<Result>(result: Result): Result {
    for (const vote of this.#votes) this.#inBackground(vote.drop())
    return result
  }

  #unknown(why: string): Error {
    const errors = this.#votes.flatMap(({ answer, error }) =>
      answer === undefined && error !== undefined ? [error] : [],
    )
    return noMajority(`claim, ${why}`, this.#votes.length, errors)
  }
}

// An operator must hear of a lease that ran out, also when only one member saw it before a rival gave it back.
function takenOver(votes: readonly Vote[]): Claimed['takenOver'] {
  const reasons = votes.map(({ claimed }) => claimed?.takenOver)
  if (reasons.includes('expired')) return 'expired'
  return reasons.includes('failed') ? 'failed' : 'no'
}

function isHeld({ state, leaseRemainingMs }: IdempotencyRecord): boolean {
  return state === 'pending' && leaseRemainingMs > 0
}
