/**
 * The store contract: what the plugin asks of a store, and the one page a store author reads first.
 *
 * The timeline of one record (`leaseMs` short, `ttlMs` long):
 *
 * ```
 *  claim      renew      renew     complete                                   expires
 *    |----------|----------|----------|==========================================|
 *    |<- lease ->                     |<----------------- ttlMs ---------------->|
 *               |<- lease ->
 *                          |<- lease ->
 *   pending: 409 to other requests    completed: replayed                    absent
 *
 *  claim      crash     lease out          next request
 *    |----------X----------|..................|----------
 *    |<------- lease ----->|   still pending, | taken over: fence + 1
 *    |<--------------------------- ttlMs -------------------------------> then absent
 *
 *  claim      fail
 *    |----------|~~~~~~~~~~~~~~~~~~~~~|
 *               |<--- failedTtlMs --->|   the next request takes it over at once, fence + 1
 * ```
 *
 * A lease protects a pending claim; a TTL bounds how long any record is kept. They are never the same
 * number: a claim that lives as long as a response would turn one crash into a day of 409s.
 */

import type { StoredResponse } from './response.ts'

/** What a request asks for when it claims a scoped key. All durations in milliseconds, whole and at least 1. */
export interface ClaimRequest {
  /** `idem#v1#<credential>#<route>#<key>`: the record's identity, opaque to a store. */
  readonly scopedKey: string
  /** Digest of the request; a record with another one is never taken over. */
  readonly fingerprint: string
  /** Random, unique per claim attempt. A store that finds it in the record answers `claimed`: the claim came back. */
  readonly token: string
  /** How long the claim is protected without a sign of life. */
  readonly leaseMs: number
  /** How long a pending record is kept at all when its owner never comes back. */
  readonly ttlMs: number
  /** May a pending record whose lease has run out be taken over? `false` leaves it for an operator. */
  readonly takeOverExpired: boolean
}

/** The right to write one record, held by the request that took it. */
export interface Claim {
  readonly scopedKey: string
  readonly fingerprint: string
  readonly token: string
  /** 1 for a fresh key, one more each time the key is taken over; 0 in a release: the claim's answer never came. */
  readonly fence: number
  /** The region that decides about this key, of a store with several. */
  readonly region?: string
}

/** `pending`: an owner runs; `completed`: replayed; `failed`: the next retry takes it over. */
export type RecordState = 'pending' | 'completed' | 'failed'

/** A record as a store gives it back. Never expired: to a reader, expired means absent. */
export interface IdempotencyRecord extends Claim {
  readonly state: RecordState
  /** Milliseconds of lease left by the store's clock; 0 when it has run out or the record is not pending. */
  readonly leaseRemainingMs: number
  /** The recorded response when `completed`. */
  readonly response?: StoredResponse | undefined
}

/** The answer to a claim. `exists` carries the record in the same round trip. */
export type ClaimResult =
  | { readonly outcome: 'claimed'; readonly claim: Claim; readonly takenOver: 'no' | 'failed' | 'expired' }
  | { readonly outcome: 'exists'; readonly record: IdempotencyRecord }

/** A figure that a store has of itself, for metrics. It always carries the label `store`. */
export interface StoreFigure {
  /** Name of the metric: a counter's ends in `_total`. */
  readonly name: string
  /** What it means and what to do about it. */
  readonly help: string
  /**
   * `gauge`: read when metrics are scraped. `counter` and `histogram`: told of as things happen.
   * @default 'gauge'
   */
  readonly type?: 'gauge' | 'counter' | 'histogram'
  /** Labels besides `store`, of few values each; never a key or a credential. For what is told of. */
  readonly labels?: readonly string[]
  /** Upper bounds of a histogram's buckets. */
  readonly buckets?: readonly number[]
}

/** Hears of counters and histograms: by how much one grew, or what was observed. Must be quick and must not throw. */
export type FigureListener = (name: string, value: number, labels?: Readonly<Record<string, string>>) => void

/** A store's figures of itself. */
export interface StoreFigures {
  readonly list: readonly StoreFigure[]
  /** All gauges by name, in one round trip, for a scrape. One that is missing is not reported. */
  read?(): Promise<Readonly<Record<string, number>>>
  /** Tells a listener of the counters and histograms from now on; there may be several. */
  listen?(listener: FigureListener): void
}

/** Something for the log that no request has failed of, such as a call that was throttled before it succeeded. */
export interface StoreWarning {
  readonly operation: string
  /** For a digest; never to be logged as it is. */
  readonly scopedKey: string
  /** What happened and what to do about it. */
  readonly message: string
  /** Members of the log line besides the usual ones. */
  readonly fields: Readonly<Record<string, string | number>>
}

/** Hears of warnings. Must be quick and must not throw. */
export type WarningListener = (warning: StoreWarning) => void

/**
 * What a store must do. The laws are DESIGN §6, each one a test in `fastify-idempotency/testing`.
 *
 * Every method may reject; the plugin reads a rejection, and a call that outlives `storeTimeoutMs`, as *unknown*:
 * it may or may not have happened, and may still happen. A store throws {@link ResponseTooLargeError} from
 * `complete` when it can never take this response.
 *
 * `complete`, `fail`, `renew` and `release` compare token and fence: the writer is the owner if the record has his
 * token and no higher fence than his. With a higher one he was overtaken, although the token is his: a copy of his claim
 * came late and took the key once more.
 */
export interface IdempotencyStore {
  /** Value of the `store` label in metrics and logs: `memory`, `redis`, … */
  readonly name: string

  /**
   * Takes the key, or returns the record that has it; one atomic act, one round trip.
   *
   * | record found | answer |
   * |---|---|
   * | none, or expired | claimed, fence 1 |
   * | pending with this token | claimed, as it stands: the claim was sent twice |
   * | completed or failed with this token | exists, as it stands |
   * | another fingerprint | exists |
   * | failed | claimed, fence + 1, `takenOver: 'failed'` |
   * | pending, lease run out, `takeOverExpired` | claimed, fence + 1, `takenOver: 'expired'` |
   * | anything else | exists |
   */
  claim(request: ClaimRequest): Promise<ClaimResult>

  /** pending (or completed by this same token, sent twice) → completed for `ttlMs`. False: no longer the owner. */
  complete(claim: Claim, response: StoredResponse, ttlMs: number): Promise<boolean>

  /** pending (or failed by this same token) → failed for `ttlMs`. False: no longer the owner. */
  fail(claim: Claim, ttlMs: number): Promise<boolean>

  /** Restarts the lease of a pending record: `leaseMs` from now by the store's clock. False: no longer the owner. */
  renew(claim: Claim, leaseMs: number): Promise<boolean>

  /**
   * Deletes a record that is not completed. False: nothing of this claim's was there. A claim with fence 0, whose
   * answer never came, is taken for one with fence 1: a key that was taken over is not forgotten, since its fences
   * would begin anew.
   */
  release(claim: Claim): Promise<boolean>

  /** The live record of a key, for waiting requests and operators; undefined when absent or expired. */
  read(scopedKey: string): Promise<IdempotencyRecord | undefined>

  /** What it can tell of itself for metrics: memory, evictions, throttled calls, … */
  readonly figures?: StoreFigures

  /** The region that decides about a key, of a store with several: for logs. */
  regionOf?(scopedKey: string): string | undefined

  /** Tells a listener of warnings from now on; there may be several. */
  onWarning?(listener: WarningListener): void

  /** Start-up check, once, off the hot path: sentences to log as warnings. A rejection refuses to start. */
  check?(): Promise<readonly string[]>

  /** Called when the app closes. Records stay; timers and connections that the store itself opened go. */
  close?(): Promise<void>
}
