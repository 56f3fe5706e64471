/** What tests of stores ask for. */

import { randomUUID } from 'node:crypto'

/** Asks for a key with a token of its own. */
export function request(scopedKey: string = randomUUID(), token: string = randomUUID()) {
  return { scopedKey, token, fingerprint: 'f', leaseMs: 30_000, ttlMs: 60_000, takeOverExpired: true }
}
