/** What one of N independent members says in one claim, and how it gets back what it gave. */

import { randomUUID } from 'node:crypto'
import type { Claim, ClaimRequest, ClaimResult, IdempotencyRecord, IdempotencyStore } from '../../store.ts'

/** Between two looks at a member that a rival has, in ms. */
export const LONGEST_PAUSE_MS = 32

/** The answer of a member that has given the claim. */
export type Claimed = ClaimResult & { outcome: 'claimed' }

/** What one member says in one claim. */
export class Vote {
  answer: ClaimResult | undefined
  /** Why there is no answer, when the member has failed; the claim may have been made all the same. */
  error: unknown
  readonly #member: IdempotencyStore
  readonly #request: ClaimRequest
  /** Came the rival who holds it when we had a majority already? Then he never had one. */
  #isPassing = false
  #isOver = false
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
   * The fence that this member gives: to us, or to a rival in passing. Any other record counts as if it were taken over,
   * since it may be the claim before ours, about to end. A silent member may know of any.
   */
  get fence(): number {
    if (this.record !== undefined) return this.#isPassing ? this.record.fence : this.record.fence + 1
    return this.claimed?.claim.fence ?? Number.POSITIVE_INFINITY
  }

  /** Will it say more soon: is it silent, or held by who may be the claim before ours? */
  get isOpen(): boolean {
    if (this.answer === undefined) return this.error === undefined
    return this.isHeld && !this.#isPassing
  }

  /** Does somebody else hold this member? */
  get isHeld(): boolean {
    return this.record !== undefined && isHeld(this.record)
  }

  /** Reads, without claiming. */
  look(): Promise<IdempotencyRecord | undefined> {
    return this.#member.read(this.#request.scopedKey)
  }

  /**
   * Asks for the claim, unless the member has given it, or is still being asked.
   * @param haveMajority do we hold a majority already?
   */
  ask(haveMajority: boolean): Promise<ClaimResult> {
    if (this.claimed !== undefined) return Promise.resolve(this.claimed)
    this.#asking ??= this.#send(haveMajority).finally(() => {
      this.#asking = undefined
    })
    return this.#asking
  }

  // Only after what was given back before is known to be gone: a release by this token that is still under way could
  // otherwise take away a vote that has been counted.
  async #send(haveMajority: boolean): Promise<ClaimResult> {
    const before = this.record?.token
    this.answer = undefined
    this.error = undefined
    try {
      if (this.#givenBack !== undefined) await this.#givenBack
      if (this.#isOver) throw new Error('the claim is over')
      this.answer = await this.#member.claim(this.#request)
      if (this.record?.token !== before) this.#isPassing = haveMajority && before !== undefined
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
    this.#givenBack = this.#return(claim)
    return this.#givenBack
  }

  #return(claim: Claim): Promise<boolean> {
    return claim.fence === 1 ? this.#member.release(claim) : this.#lower(claim, claim.fence - 1)
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
    // Others come and go in between, so that it may have got more than was asked for.
    if (stepping.outcome === 'claimed') await this.#lower(stepping.claim, Math.max(fence, stepping.claim.fence) - 1)
  }

  /** Sends no claim any more; one that is under way stays ahead of what is sent next. */
  end(): void {
    this.#isOver = true
  }

  /** For good: gives back also what the member gives late, or may have given without our hearing of it. */
  async drop(): Promise<void> {
    await this.#asking?.catch(() => {})
    if (this.claimed !== undefined) await this.giveBack()
    else if (this.error !== undefined) await this.#dropUnheard()
  }

  // Only the record tells whether it was a free key that was taken, or one with a fence to keep.
  async #dropUnheard(): Promise<void> {
    const record = await this.look()
    if (record?.token === this.#request.token && record.state === 'pending') await this.#return(record)
  }
}

/** Does its owner run, by the clock of the member that tells of it? */
export function isHeld({ state, leaseRemainingMs }: IdempotencyRecord): boolean {
  return state === 'pending' && leaseRemainingMs > 0
}
