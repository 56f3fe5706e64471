/**
 * `fastify-idempotency/testing`: the laws of the store contract as a node:test suite, for anyone's store.
 *
 * ```ts
 * import { storeConformance } from 'fastify-idempotency/testing'
 *
 * storeConformance(() => new MyStore({ url: process.env.MY_STORE_URL }))
 * ```
 */

import { describe } from 'node:test'
import type { IdempotencyStore } from '../store.ts'
import type { StoreCapabilities } from './capabilities.ts'
import { repliesLost, straight, unruly } from './faults.ts'
import { claimLaws } from './laws-of-claims.ts'
import { keyLaws } from './laws-of-keys.ts'
import { ownerLaws } from './laws-of-owners.ts'
import { raceLaws } from './laws-of-races.ts'
import { responseLaws } from './laws-of-responses.ts'
import { timeLaws } from './laws-of-time.ts'
import { roundTripLaws, versionLaws } from './laws-of-wire.ts'
import { Trial } from './trial.ts'

export type { StoreCapabilities } from './capabilities.ts'

/**
 * Registers the suite with node:test; call it at the top level of a test file or in a `describe`. The set of laws runs twice, straight and
 * with every command sent twice because the reply to the first got lost; then come the races of many clients.
 *
 * Every test uses random keys of its own, so a shared server will do. What the factory opened is closed at the end.
 *
 * @param factory opens one client of the store, ready for use; called up to four times for each of the three groups
 * @param capabilities what the suite may use beyond the contract
 */
export function storeConformance(
  factory: () => IdempotencyStore | Promise<IdempotencyStore>,
  capabilities: StoreCapabilities = {},
): void {
  // One after the other, wherever this is called: a clock that is moved is moved for all.
  describe('store conformance', { concurrency: 1 }, () => {
    describe('the laws of a store', () => {
      const trial = new Trial(factory, capabilities, straight())
      laws(trial)
      roundTripLaws(trial)
    })
    describe('when replies are lost and the driver sends commands again', () => {
      const trial = new Trial(factory, capabilities, repliesLost())
      laws(trial)
      trial.expectFaults('commands were sent again')
    })
    describe('when calls of many clients are delayed and overtake each other', () => {
      const trial = new Trial(factory, capabilities, unruly())
      raceLaws(trial)
      trial.expectFaults('calls overtook others')
    })
  })
}

function laws(trial: Trial): void {
  claimLaws(trial)
  keyLaws(trial)
  ownerLaws(trial)
  timeLaws(trial)
  responseLaws(trial)
  versionLaws(trial)
}
