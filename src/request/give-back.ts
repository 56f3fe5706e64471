/** Giving a key back, so that the next request runs at once, without its fences going back. */

import type { Claim, IdempotencyStore } from '../store.ts'

/**
 * Gives back a claim that is not to be run. A key that was taken over is failed, not forgotten: forgotten, it would be
 * claimed with fence 1 again, which an earlier owner may still bear.
 * @param failedTtlMs how long a key that was taken over is remembered
 */
export function giveBack(store: IdempotencyStore, claim: Claim, failedTtlMs: number): Promise<boolean> {
  return claim.fence > 1 ? store.fail(claim, failedTtlMs) : store.release(claim)
}

/** The same for a claim whose answer never came: what it took, if anything, is in the record. */
export async function giveBackUnknown(store: IdempotencyStore, claim: Claim, failedTtlMs: number): Promise<boolean> {
  const record = await store.read(claim.scopedKey).catch(() => undefined)
  return giveBack(store, record?.token === claim.token ? record : claim, failedTtlMs)
}
