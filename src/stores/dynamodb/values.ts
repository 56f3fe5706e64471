/** The values of the expressions. */

import type { Claim, ClaimRequest } from '../../store.ts'
import { credentialOf, type Item } from './item.ts'
import type { ResolvedOptions } from './options.ts'

/** A number as DynamoDB takes it. */
export function numberOf(value: number): { N: string } {
  return { N: String(value) }
}

/** The instant (ms) by which a condition judges, in both units: an item has expired when it has by either. */
export function instant(now: number): Item {
  return { ':now': numberOf(now), ':nowSeconds': numberOf(Math.floor(now / 1_000)) }
}

/** The end of a record (ms), in both units; seconds are rounded up, so that DynamoDB never deletes a live item. */
export function expiryAt(ms: number): Item {
  return { ':expiresAt': numberOf(Math.ceil(ms / 1_000)), ':expiresAtMs': numberOf(ms) }
}

/** Who writes, and when. */
export function ownerValues({ token, fence }: Claim, now: number): Item {
  return { ':token': { S: token }, ':fence': numberOf(fence), ...instant(now) }
}

/** A claim that begins now. It is kept for its TTL, and never less than a clock that is ahead honours its lease. */
export function claimValues(
  { scopedKey, fingerprint, token, leaseMs, ttlMs, takeOverExpired }: ClaimRequest,
  now: number,
  { clockSkewMs, credentialIndex }: ResolvedOptions,
): Item {
  return {
    ':token': { S: token },
    ':fingerprint': { S: fingerprint },
    ':leaseExpiresAt': numberOf(now + leaseMs),
    ':lapsedBefore': numberOf(takeOverExpired ? now - clockSkewMs : 0),
    ...(credentialIndex && { ':credentialId': { S: credentialOf(scopedKey) } }),
    ...expiryAt(now + Math.max(ttlMs, leaseMs + clockSkewMs)),
    ...instant(now),
  }
}
