/** A completion, brought to members that did not have the claim. */

import { setTimeout as sleep } from 'node:timers/promises'
import type { StoredResponse } from '../../response.ts'
import type { Claim, IdempotencyStore } from '../../store.ts'
import { isHeld, LONGEST_PAUSE_MS } from './vote.ts'

/** What a majority has completed. */
export interface Completion {
  readonly claim: Claim
  readonly response: StoredResponse
  /** What is left of its TTL. */
  readonly remainingMs: () => number
  /** Is it time to leave a member to the rival who has it? */
  readonly isLate: () => boolean
}

/**
 * Brings a completion that a majority has to a member that did not have the claim, so that it is not missed when another
 * one loses its data. A rival who has the member for a moment is waited for.
 */
export async function spread(
  member: IdempotencyStore,
  call: Promise<boolean> | undefined,
  end: Completion,
): Promise<void> {
  if (await call) return
  const { claim, response, remainingMs, isLate } = end
  for (;;) {
    const leaseMs = Math.min(remainingMs(), 1_000)
    const result = await member.claim({ ...claim, leaseMs, ttlMs: remainingMs(), takeOverExpired: true })
    if (result.outcome === 'claimed') {
      // What the member knows of may be higher, without a majority's ever having had it.
      const fence = Math.max(claim.fence, result.claim.fence)
      return void (await member.complete({ ...claim, fence }, response, remainingMs()))
    }
    if (!isHeld(result.record) || isLate()) return
    await sleep(LONGEST_PAUSE_MS)
  }
}
