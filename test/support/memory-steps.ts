/** What a memory store and its model are told, at random. */

import fc from 'fast-check'
import type { ClaimRequest } from '../../src/index.ts'

/** The keys that are told of. */
export const KEYS = ['a', 'b', 'c', 'd', 'e', 'f']

/** A write by some claim, counted back from the newest. */
export interface WriteStep {
  readonly kind: 'complete' | 'fail' | 'renew' | 'release'
  readonly of: number
  readonly ms: number
  readonly bytes: number
}

/** One thing that happens to the store. */
export type Step =
  | { readonly kind: 'advance'; readonly ms: number }
  | { readonly kind: 'claim again'; readonly of: number }
  | ({ readonly kind: 'claim'; readonly key: string } & Pick<
      ClaimRequest,
      'fingerprint' | 'leaseMs' | 'ttlMs' | 'takeOverExpired'
    >)
  | WriteStep

const ms = fc.oneof(fc.integer({ min: 1, max: 300 }), fc.integer({ min: 1, max: 5_000 }))
// Counted from the newest claim, which is the most likely to own anything.
const of = fc.oneof(fc.nat({ max: 5 }), fc.nat({ max: 40 }))
const advance = fc.record({ kind: fc.constant('advance' as const), ms })
const claimAgain = fc.record({ kind: fc.constant('claim again' as const), of })
const write = fc.record({
  kind: fc.constantFrom('complete' as const, 'fail' as const, 'renew' as const, 'release' as const),
  of,
  ms,
  bytes: fc.integer({ min: 0, max: 2_500 }),
})

/** What may happen next. */
export const anyStep: fc.Arbitrary<Step> = fc.oneof(
  advance,
  claimAgain,
  write,
  fc.record({
    kind: fc.constant('claim' as const),
    key: fc.constantFrom(...KEYS),
    fingerprint: fc.constantFrom('f', 'f', 'f', 'g'),
    leaseMs: ms,
    ttlMs: ms,
    takeOverExpired: fc.boolean(),
  }),
)

/** The same for one key that is taken over time and again. */
export const contestedStep: fc.Arbitrary<Step> = fc.oneof(
  advance,
  claimAgain,
  write,
  fc.record({
    kind: fc.constant('claim' as const),
    key: fc.constant('a'),
    fingerprint: fc.constant('f'),
    leaseMs: fc.integer({ min: 1, max: 300 }),
    ttlMs: fc.constant(20_000),
    takeOverExpired: fc.constant(true),
  }),
)
