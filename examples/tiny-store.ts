/** The smallest store that keeps every law of the contract; a starting point for one of your own. */

import {
  assertDuration,
  type Claim,
  type ClaimRequest,
  type ClaimResult,
  decodeResponse,
  encodeResponse,
  type IdempotencyRecord,
  type IdempotencyStore,
  type StoredResponse,
} from 'fastify-idempotency'

interface Row extends Claim {
  state: IdempotencyRecord['state']
  leaseUntil: number
  expiresAt: number
  bytes?: Buffer
}

/**
 * Records in a Map. No method awaits between reading a row and writing it, which is what makes each one atomic here;
 * on a server it takes a conditional write or a script. Rows are never swept: real stores need a bound, or a TTL.
 */
export class TinyStore implements IdempotencyStore {
  readonly name = 'tiny'
  readonly #rows = new Map<string, Row>()
  readonly #now: () => number

  constructor(now: () => number = Date.now) {
    this.#now = now
  }

  async claim({ scopedKey, fingerprint, token, leaseMs, ttlMs, takeOverExpired }: ClaimRequest): Promise<ClaimResult> {
    assertDuration('leaseMs', leaseMs)
    assertDuration('ttlMs', ttlMs)
    const now = this.#now()
    const found = this.#live(scopedKey)
    // Our own token: this claim was made before, and its reply got lost.
    if (found?.token === token) return { outcome: 'claimed', claim: claimOf(found), takenOver: 'no' }
    const isLapsed = found?.state === 'pending' && found.leaseUntil <= now && takeOverExpired
    const isFree = found === undefined || (found.fingerprint === fingerprint && (found.state === 'failed' || isLapsed))
    if (!isFree) return { outcome: 'exists', record: recordOf(found, now) }
    const claim = { scopedKey, fingerprint, token, fence: (found?.fence ?? 0) + 1 }
    this.#rows.set(scopedKey, { ...claim, state: 'pending', leaseUntil: now + leaseMs, expiresAt: now + ttlMs })
    const takenOver = found === undefined ? 'no' : found.state === 'failed' ? 'failed' : 'expired'
    return { outcome: 'claimed', claim, takenOver }
  }

  async complete(claim: Claim, response: StoredResponse, ttlMs: number): Promise<boolean> {
    assertDuration('ttlMs', ttlMs)
    const bytes = encodeResponse(response)
    return this.#write(claim, 'completed', { state: 'completed', expiresAt: this.#now() + ttlMs, bytes })
  }

  async fail(claim: Claim, ttlMs: number): Promise<boolean> {
    assertDuration('ttlMs', ttlMs)
    return this.#write(claim, 'failed', { state: 'failed', expiresAt: this.#now() + ttlMs })
  }

  async renew(claim: Claim, leaseMs: number): Promise<boolean> {
    assertDuration('leaseMs', leaseMs)
    const leaseUntil = this.#now() + leaseMs
    const expiresAt = Math.max(leaseUntil, this.#live(claim.scopedKey)?.expiresAt ?? 0)
    return this.#write(claim, 'pending', { leaseUntil, expiresAt })
  }

  async release(claim: Claim): Promise<boolean> {
    // Fence 0: the claim's answer never came. Then only a key that was claimed for the first time may be forgotten.
    const fence = Math.max(1, claim.fence)
    return this.#write({ ...claim, fence }, 'failed', {}) && this.#rows.delete(claim.scopedKey)
  }

  async read(scopedKey: string): Promise<IdempotencyRecord | undefined> {
    const found = this.#live(scopedKey)
    return found && recordOf(found, this.#now())
  }

  /** Expired means absent, at once, although the row is still there. */
  #live(scopedKey: string): Row | undefined {
    const found = this.#rows.get(scopedKey)
    return found !== undefined && found.expiresAt > this.#now() ? found : undefined
  }

  /**
   * Only the token in the row may write, while pending, or when the same call was sent twice. Not at a lower fence than
   * the row's: then the key was taken over, and a late copy of this claim has taken it once more, unknown to its sender.
   */
  #write(claim: Claim, orAlready: Row['state'], changes: Partial<Row>): boolean {
    const found = this.#live(claim.scopedKey)
    if (found?.token !== claim.token || found.fence > claim.fence) return false
    if (found.state !== 'pending' && found.state !== orAlready) return false
    Object.assign(found, changes)
    return true
  }
}

function claimOf({ scopedKey, fingerprint, token, fence }: Row): Claim {
  return { scopedKey, fingerprint, token, fence }
}

function recordOf(row: Row, now: number): IdempotencyRecord {
  const leaseRemainingMs = row.state === 'pending' ? Math.max(0, row.leaseUntil - now) : 0
  const record = { ...claimOf(row), state: row.state, leaseRemainingMs }
  // A copy: a decoded body is a view of the bytes, and its reader may change it.
  return row.bytes ? { ...record, response: decodeResponse(Buffer.from(row.bytes)) } : record
}
