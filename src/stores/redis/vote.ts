/** What one of N independent members says in one claim, and how it gets back what it gave. */

import type { Claim, ClaimRequest, ClaimResult, IdempotencyRecord, IdempotencyStore } from '../../store.ts'

/** Between two looks at a member that a rival has, in ms. */
export const LONGEST_PAUSE_MS = 32

/** The answer of a member that has given the claim. */
export type Claimed = ClaimResult & { outcome: 'claimed' }

/** A store that can also undo a claim: without that its fences grow by claims under which nothing has run. */
export interface Member extends IdempotencyStore {
  giveBack?(claim: Claim, ttlMs: number): Promise<boolean>
}

/** What one member says in one claim. */
export class Vote {
  answer: ClaimResult | undefined
  /** Why there is no answer, when the member has failed; the claim may have been made all the same. */
  error: unknown
  readonly #member: Member
  readonly #request: ClaimRequest
  #isOver = false
  #asking: Promise<ClaimResult> | undefined
  #givenBack: Promise<unknown> | undefined

  constructor(member: Member, request: ClaimRequest) {
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

  /** The fence that this member has given us; 0: none. */
  get fence(): number {
    return this.claimed?.claim.fence ?? 0
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
   * Asks for the claim, unless the member has given it at this fence or a higher one, or is still being asked.
   * @param fence to which a claim that the member has given is raised
   */
  ask(fence: number): Promise<ClaimResult> {
    if (this.claimed !== undefined && this.fence >= fence) return Promise.resolve(this.claimed)
    this.#asking ??= this.#send(fence).finally(() => {
      this.#asking = undefined
    })
    return this.#asking
  }

  // Only after what was given back before is known to be gone: if that is still under way, it could otherwise take away
  // a vote that has been counted.
  async #send(fence: number): Promise<ClaimResult> {
    const given = this.claimed
    this.answer = undefined
    this.error = undefined
    try {
      if (this.#givenBack !== undefined) await this.#givenBack
      if (this.#isOver) throw new Error('the claim is over')
      const raised = given && (await this.#raise(given, fence))
      this.answer = raised ?? (await this.#member.claim(this.#request))
      return this.answer
    } catch (error) {
      this.error = error
      throw error
    }
  }

  async #raise(given: Claimed, fence: number): Promise<Claimed | undefined> {
    const claim = { ...given.claim, fence }
    const isRaised = await this.#member.renew(claim, this.#request.leaseMs).catch(() => false)
    return isRaised ? { ...given, claim } : undefined
  }

  /** Gives the member's claim back. One that was taken over keeps the fence it had, or the fences would start anew. */
  giveBack(): Promise<unknown> {
    const claim = this.claimed?.claim
    if (claim === undefined) return Promise.resolve()
    this.answer = undefined
    this.#givenBack = this.#return(claim)
    return this.#givenBack
  }

  #return(claim: Claim): Promise<boolean> {
    const { ttlMs } = this.#request
    if (this.#member.giveBack !== undefined) return this.#member.giveBack(claim, ttlMs)
    return claim.fence === 1 ? this.#member.release(claim) : this.#member.fail(claim, ttlMs)
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
