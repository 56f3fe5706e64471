/** One claim at N independent members: votes, split votes, and giving back what did not become a majority. */

import { randomInt } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import type { ClaimRequest, ClaimResult, IdempotencyRecord, IdempotencyStore } from '../../store.ts'
import { agreedRecord, completedRecord, majorityOf, newestRecord, noMajority, poll } from './majority.ts'
import { type Claimed, isHeld, LONGEST_PAUSE_MS, Vote } from './vote.ts'

/** A lease with less left than this share of it is too short to start a handler under, as in the core. */
const LEASE_MARGIN = 0.1

/** Has so much of a lease passed since `startedAt` that what was asked for then is not to be relied on? */
export function isSpent(leaseMs: number, startedAt: number): boolean {
  return performance.now() - startedAt >= leaseMs * (1 - LEASE_MARGIN)
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

  // A rival who does not find a majority, because a member has failed, keeps what he has for all of `timeoutMs`, and the
  // next one may come at once. Left to them, the claim would not survive the loss of one member's data: so it is asked for
  // as long as the claim may run.
  async #take(vote: Vote): Promise<void> {
    try {
      while (!this.#isEnding && vote.claimed === undefined) {
        const isSoon = !this.#isLateBy(0.25)
        if (vote.isHeld && isSoon) this.#contended.add(vote)
        else this.#contended.delete(vote)
        await vote.ask(0)
        if (!vote.isHeld || isSpent(this.#request.leaseMs, this.#startedAt)) return
        await sleep(Math.max(1, this.#elapsedMs / 16))
      }
    } finally {
      this.#contended.delete(vote)
    }
  }

  /** Before the claim is written to: what a rival is about to give back is waited for, silence is not. */
  async settled(): Promise<void> {
    while (this.#contended.size > 0) await sleep(1)
  }

  /** Before the claim is given up: nothing is taken any more. */
  async end(): Promise<void> {
    await this.settled()
    this.#isEnding = true
    for (const vote of this.#votes) vote.end()
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

  get #haveMajority(): boolean {
    return this.#ours.length >= this.#majority
  }

  /** How long a member is waited for now: all calls together take little longer than `timeoutMs`. */
  get #patienceMs(): number {
    return Math.max(this.#timeoutMs - this.#elapsedMs, this.#timeoutMs / 4)
  }

  get #elapsedMs(): number {
    return performance.now() - this.#startedAt
  }

  #isLateBy(share: number): boolean {
    return this.#elapsedMs >= this.#timeoutMs * share
  }

  async #vote(): Promise<ClaimResult | undefined> {
    const patience = { timeoutMs: this.#patienceMs, enough: this.#majority }
    const fence = this.#fence
    const calls = this.#votes.map((vote) => vote.ask(fence))
    const result = await poll(calls, patience, () => this.#certain())
    if (result === 'unknown' || this.#heard.length < this.#majority) return undefined
    if (result !== undefined) return result
    const record = this.#bestRecord
    return record && { outcome: 'exists', record }
  }

  /**
   * A completed record stands for a run that happened: it is the answer, unless a majority has overtaken it. Where its
   * fence is not below theirs, they have lost what they knew of it.
   */
  get #completed(): IdempotencyRecord | undefined {
    const record = completedRecord(this.#records)
    if (record === undefined) return undefined
    const overtaking = this.#ours.filter(({ fence }) => fence > record.fence)
    return overtaking.length < this.#majority ? record : undefined
  }

  /** When no majority agrees, the record that forbids to run all the same. */
  get #bestRecord(): IdempotencyRecord | undefined {
    if (this.#completed !== undefined) return this.#completed
    // Nobody is there whose stepping back would change anything.
    const isStill = this.#ours.length === 0 && !this.#votes.some(({ isHeld }) => isHeld)
    return isStill ? newestRecord(this.#records) : undefined
  }

  /** The answer that the members who are still silent cannot change. */
  #certain(): ClaimResult | 'unknown' | undefined {
    const record = agreedRecord(this.#records, this.#majority)
    if (record !== undefined) return { outcome: 'exists', record }
    if (this.#haveMajority) return this.#claimed()
    const failed = this.#votes.filter(({ answer, error }) => answer === undefined && error !== undefined)
    return failed.length > this.#votes.length - this.#majority ? 'unknown' : undefined
  }

  #claimed(): ClaimResult | undefined {
    const fence = this.#fence
    const granted = this.#ours.filter((vote) => vote.fence === fence)
    if (granted.length < this.#majority) return undefined
    if (this.#completed !== undefined) return undefined
    const { scopedKey, fingerprint, token } = this.#request
    return { outcome: 'claimed', claim: { scopedKey, fingerprint, token, fence }, takenOver: takenOver(this.#ours) }
  }

  /** The highest that a member has given us, to which the others are raised when they are asked again. */
  get #fence(): number {
    return Math.max(...this.#votes.map(({ fence }) => fence))
  }

  /**
   * Nobody has a majority at one fence. One of the rivals stays, and asks again soon; the others step back.
   * @returns the record of the rival who has won in the meantime
   */
  async #settle(round: number): Promise<ClaimResult | undefined> {
    const pauseMs = Math.min(2 ** round, LONGEST_PAUSE_MS)
    if (!this.#haveMajority && !this.#isFirst) return this.#stepBack(pauseMs)
    await sleep(1)
    return undefined
  }

  /** Is the first member that anybody holds ours? All rivals who hear the same members agree on who stays. */
  get #isFirst(): boolean {
    return this.#votes.find(({ claimed, isHeld }) => claimed !== undefined || isHeld)?.claimed !== undefined
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
    const patience = { timeoutMs: this.#patienceMs, enough: this.#majority }
    const records: IdempotencyRecord[] = []
    const calls = this.#votes.map(async (vote) => {
      const record = await vote.look()
      if (record !== undefined) records.push(record)
    })
    await poll(calls, patience, () => undefined)
    return [...records]
  }

  async #bounded(work: Promise<unknown>): Promise<void> {
    await poll([work], { timeoutMs: this.#patienceMs }, () => undefined)
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
