/** Step 3: claim the key, and decide what this request may do. */

import type { FastifyReply, FastifyRequest } from 'fastify'
import { IdempotencyError } from '../errors.ts'
import type { ClaimOutcome } from '../events.ts'
import type { StoredResponse } from '../response.ts'
import type { Claim, ClaimRequest, ClaimResult, IdempotencyRecord } from '../store.ts'
import { claimToken } from './claim-token.ts'
import type { RequestIdempotency } from './context.ts'
import { fingerprintOf, fingerprintOfChoice } from './fingerprint.ts'
import { giveBack, giveBackUnknown } from './give-back.ts'
import type { CoveredRoute } from './route.ts'

/** What a request with a key may do. Everything else is an IdempotencyError. */
export type Decision =
  | { readonly kind: 'run'; readonly claim: Claim; readonly sentAt: number }
  | { readonly kind: 'replay'; readonly record: IdempotencyRecord; readonly response: StoredResponse }
  | { readonly kind: 'unprotected' }

/** A lease with less left than this share of it is too short to start a handler under. */
const LEASE_MARGIN = 0.1
const RETRY_AFTER_OUTAGE_MS = 1_000

/**
 * Claims the key, waiting for a running first request where the route says so.
 * @throws IdempotencyError when this request must not run and has nothing to replay
 */
export async function claimKey(route: CoveredRoute, request: FastifyRequest, reply: FastifyReply): Promise<Decision> {
  const context = request.idempotency as RequestIdempotency
  const fingerprint = fingerprintFor(route, request)
  const { onInProgress } = route.options
  const waitUntil = onInProgress === 'reject' ? 0 : performance.now() + onInProgress.waitMs
  for (;;) {
    const attempt = new ClaimAttempt(route, request, context.scopedKey, fingerprint)
    let result: ClaimResult
    try {
      result = await attempt.send()
    } catch (error) {
      return attempt.giveUp(error)
    }
    if (result.outcome === 'claimed') return attempt.accept(result)
    const remainingMs = waitUntil - performance.now()
    if (!isRunning(result.record, fingerprint) || remainingMs <= 0) return attempt.decide(result.record)
    await route.runtime.waiters.wait(context.scopedKey, remainingMs)
    if (reply.raw.destroyed) return attempt.decide(result.record) // nobody is left to wait for
  }
}

function fingerprintFor({ runtime, options, pattern, ignoredFields }: CoveredRoute, request: FastifyRequest): string {
  if (options.fingerprint === undefined) {
    if (request.body === undefined && hasBody(request)) runtime.warnOnce(request.log, unreadBody(pattern))
    return fingerprintOf(request, ignoredFields)
  }
  const choice: unknown = options.fingerprint(request)
  const isUsable = typeof choice === 'string' || (typeof choice === 'object' && choice !== null)
  if (isUsable && !(choice instanceof Promise)) return fingerprintOfChoice(choice)
  throw new TypeError(`fingerprint(request) must return a string, a Buffer or an object, got ${typeof choice}`)
}

function hasBody({ headers }: FastifyRequest): boolean {
  return headers['transfer-encoding'] !== undefined || Number(headers['content-length'] ?? 0) > 0
}

function unreadBody(pattern: string): string {
  return (
    `${pattern}: the body is read by the handler and is no part of the fingerprint, so another upload with the same ` +
    'key is taken for a retry; set the option "fingerprint"'
  )
}

function isRunning(record: IdempotencyRecord, fingerprint: string): boolean {
  return record.state === 'pending' && record.leaseRemainingMs > 0 && record.fingerprint === fingerprint
}

/** One claim attempt with a token of its own. */
class ClaimAttempt {
  readonly #route: CoveredRoute
  readonly #request: FastifyRequest
  readonly #asked: ClaimRequest
  readonly #sentAt = performance.now()
  #answer: Promise<ClaimResult> | undefined

  constructor(route: CoveredRoute, request: FastifyRequest, scopedKey: string, fingerprint: string) {
    const { leaseMs, ttlMs, onLeaseExpired } = route.options
    this.#route = route
    this.#request = request
    this.#asked = {
      scopedKey,
      fingerprint,
      token: claimToken(),
      leaseMs,
      ttlMs,
      takeOverExpired: onLeaseExpired === 'rerun',
    }
  }

  send(): Promise<ClaimResult> {
    const { runtime, options } = this.#route
    this.#answer = runtime.store.claim(this.#asked)
    return runtime.within(options.storeTimeoutMs, this.#answer, this.#sentAt)
  }

  /** The store did not answer: refuse, or run without protection where the route says so. */
  giveUp(error: unknown): Decision {
    const { runtime, options } = this.#route
    this.#emit('error')
    runtime.events.emit({ type: 'store-error', operation: 'claim', error, ...this.#subject() })
    this.#giveBackUnknown()
    if (options.onStoreError === 'reject') throw unavailable('The request was not run.')
    runtime.events.emit({ type: 'unprotected', ...this.#subject() })
    return { kind: 'unprotected' }
  }

  /** The claim is ours: run the route, unless the answer took so long that the lease may be over. */
  accept({ claim, takenOver }: ClaimResult & { outcome: 'claimed' }): Decision {
    const { runtime, options } = this.#route
    if (takenOver === 'expired') runtime.events.emit({ type: 'lease-expired', ...this.#subject() })
    const durationMs = performance.now() - this.#sentAt
    if (durationMs >= options.leaseMs * (1 - LEASE_MARGIN)) {
      this.#emit('error')
      runtime.inBackground(() => giveBack(runtime.store, claim, options.failedTtlMs))
      throw unavailable('The store answered too late for the request to be run safely.')
    }
    this.#emit(takenOver === 'expired' ? 'taken_over' : 'claimed', durationMs)
    return { kind: 'run', claim, sentAt: this.#sentAt }
  }

  /** The key has a record that is not ours: replay it, or say why not. */
  decide(record: IdempotencyRecord): Decision {
    if (record.fingerprint !== this.#asked.fingerprint) {
      this.#emit('mismatch')
      throw new IdempotencyError(
        'FST_IDEMPOTENCY_KEY_REUSED',
        'This Idempotency-Key was already used with a different request. Use a new key for a new operation.',
      )
    }
    if (record.state === 'completed' && record.response !== undefined) return this.#replay(record, record.response)
    if (record.leaseRemainingMs > 0 || this.#asked.takeOverExpired) {
      this.#emit('in_progress')
      throw new IdempotencyError(
        'FST_IDEMPOTENCY_IN_PROGRESS',
        'The first request with this Idempotency-Key is still running. Retry later with the same key.',
        record.leaseRemainingMs,
      )
    }
    this.#emit('uncertain')
    throw new IdempotencyError(
      'FST_IDEMPOTENCY_UNCERTAIN',
      'An earlier attempt with this Idempotency-Key stopped without an answer. It may or may not have taken effect.',
    )
  }

  #replay(record: IdempotencyRecord, response: StoredResponse): Decision {
    this.#emit(response.replayable ? 'replayed' : 'not_replayable')
    if (response.replayable) return { kind: 'replay', record, response }
    throw new IdempotencyError(
      'FST_IDEMPOTENCY_NOT_REPLAYABLE',
      'The operation ran, but its response could not be recorded. Do not repeat it; look up its result instead.',
    )
  }

  /**
   * Without an answer the claim may exist, or come to exist when a queued command runs later. It is given back by
   * token: at once, and again should the late answer say that it was made after all.
   */
  #giveBackUnknown(): void {
    const { runtime, options } = this.#route
    runtime.inBackground(() => giveBackUnknown(runtime.store, { ...this.#asked, fence: 0 }, options.failedTtlMs))
    const giveBackLate = (late: ClaimResult) => {
      if (late.outcome !== 'claimed') return
      runtime.inBackground(() => giveBack(runtime.store, late.claim, options.failedTtlMs))
    }
    this.#answer?.then(giveBackLate, () => {})
  }

  #emit(outcome: ClaimOutcome, durationMs = performance.now() - this.#sentAt): void {
    const { events, store } = this.#route.runtime
    const { scopedKey } = this.#asked
    events.emit({ type: 'claim', outcome, durationMs, store: store.name, scopedKey, request: this.#request })
  }

  #subject() {
    return { store: this.#route.runtime.store.name, scopedKey: this.#asked.scopedKey, request: this.#request }
  }
}

function unavailable(detail: string): IdempotencyError {
  return new IdempotencyError(
    'FST_IDEMPOTENCY_STORE_UNAVAILABLE',
    `${detail} Retry with the same key.`,
    RETRY_AFTER_OUTAGE_MS,
  )
}
