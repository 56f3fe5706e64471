/** The claim in its owner's hands: its lease is kept, and one write ends it. */

import createError from '@fastify/error'
import type { FastifyRequest } from 'fastify'
import type { Delayed } from '../delay-queue.ts'
import type { StoreOperation } from '../events.ts'
import type { Outcome } from '../options.ts'
import { bodyBytes, type StoredResponse, withoutBody } from '../response.ts'
import type { Claim } from '../store.ts'
import { giveBack } from './give-back.ts'
import type { CoveredRoute } from './route.ts'

const LeaseLostError = createError('FST_IDEMPOTENCY_LEASE_LOST', 'the lease of this Idempotency-Key was lost')

/** How a claim ends. A response comes with `complete` and only with it. */
export type Ending =
  | { readonly outcome: 'complete'; readonly response: StoredResponse }
  | { readonly outcome: Exclude<Outcome, 'complete'> }

export class OwnedClaim implements Delayed {
  previous: this | undefined
  next: this | undefined
  dueAt = 0
  readonly #route: CoveredRoute
  readonly #request: FastifyRequest
  readonly #claim: Claim
  readonly #claimedAt: number
  #leaseUntil: number
  #isLate = false
  #isLost = false
  #isSettled = false

  /** @param claimedAt when the claim was sent, on the `performance.now()` clock: the lease cannot have begun earlier */
  constructor(route: CoveredRoute, request: FastifyRequest, claim: Claim, claimedAt: number) {
    this.#route = route
    this.#request = request
    this.#claim = claim
    this.#claimedAt = claimedAt
    this.#leaseUntil = claimedAt + route.options.leaseMs
    route.renewals.add(this, performance.now())
  }

  /** The client got a 503 by `handlerTimeout`; whatever is recorded from here on comes late. */
  markLate(): void {
    this.#isLate = true
  }

  /** A third of the lease is over and the handler still runs. */
  renew(): void {
    this.#route.runtime.inBackground(() => this.#renew())
  }

  async #renew(): Promise<void> {
    const { runtime, options, renewals } = this.#route
    const sentAt = performance.now()
    // A handler that never answers must not hold its key for ever: after the TTL the lease is left to run out.
    if (sentAt - this.#claimedAt > options.ttlMs) return
    try {
      const renewal = runtime.store.renew(this.#claim, options.leaseMs)
      const isOwner = await runtime.within(options.storeTimeoutMs, renewal, sentAt)
      if (!isOwner) return this.#lose()
      this.#leaseUntil = sentAt + options.leaseMs
    } catch (error) {
      this.#failed('renew', error)
      if (performance.now() >= this.#leaseUntil) this.#lose()
    }
    if (!this.#isSettled) renewals.add(this, performance.now())
  }

  /**
   * Ends the claim. Resolves when the store has answered, or when its time is up and the write goes on in the
   * background; the lease is kept until then, because after a success nothing must run again.
   */
  async end(ending: Ending): Promise<void> {
    const startedAt = performance.now()
    try {
      await this.#write(ending, startedAt)
    } catch {
      this.#route.runtime.inBackground(() => this.#writeLater(ending, startedAt))
    }
  }

  async #writeLater(ending: Ending, startedAt: number): Promise<void> {
    const { runtime, options } = this.#route
    try {
      await runtime.retry(() => this.#write(ending, startedAt), options.leaseMs / 3)
    } catch (error) {
      this.#settle()
      runtime.events.emit({ type: 'record-lost', error, ...this.#subject() })
    }
  }

  async #write(ending: Ending, startedAt: number): Promise<void> {
    const { runtime, options } = this.#route
    try {
      const isOwner = await runtime.within(options.storeTimeoutMs, this.#send(ending), performance.now())
      this.#written(ending, isOwner, startedAt)
    } catch (error) {
      this.#failed(ending.outcome, error)
      if (!isTooLarge(error) || ending.outcome !== 'complete' || !ending.response.replayable) throw error
      await this.#write({ outcome: 'complete', response: withoutBody(ending.response.statusCode) }, startedAt)
    }
  }

  #send(ending: Ending): Promise<boolean> {
    const { runtime, options } = this.#route
    switch (ending.outcome) {
      case 'complete':
        return runtime.store.complete(this.#claim, ending.response, options.ttlMs)
      case 'fail':
        return runtime.store.fail(this.#claim, options.failedTtlMs)
      case 'release':
        return giveBack(runtime.store, this.#claim, options.failedTtlMs)
    }
  }

  #written(ending: Ending, isOwner: boolean, startedAt: number): void {
    const now = performance.now()
    const response = ending.outcome === 'complete' ? ending.response : undefined
    // A release that was sent twice says "not mine" although it happened: its answer proves nothing.
    if (!isOwner && ending.outcome !== 'release') this.#lose()
    this.#settle()
    this.#route.runtime.events.emit({
      type: 'completion',
      outcome: ending.outcome,
      durationMs: now - startedAt,
      isOwner,
      isLate: this.#isLate || now > this.#leaseUntil,
      bytes: response === undefined ? 0 : bodyBytes(response.body),
      isReplayable: response?.replayable ?? false,
      store: this.#route.runtime.store.name,
      scopedKey: this.#claim.scopedKey,
      request: this.#request,
    })
  }

  #failed(operation: StoreOperation, error: unknown): void {
    this.#route.runtime.events.emit({ type: 'store-error', operation, error, ...this.#subject() })
  }

  #lose(): void {
    if (this.#isLost || this.#isSettled) return
    this.#isLost = true
    this.#request.idempotency?.abort(new LeaseLostError())
    this.#route.runtime.events.emit({ type: 'lease-lost', ...this.#subject() })
  }

  #settle(): void {
    if (this.#isSettled) return
    this.#isSettled = true
    this.#route.renewals.remove(this)
    this.#route.runtime.waiters.wake(this.#claim.scopedKey)
  }

  #subject() {
    return { store: this.#route.runtime.store.name, scopedKey: this.#claim.scopedKey, request: this.#request }
  }
}

function isTooLarge(error: unknown): boolean {
  return (error as { code?: unknown } | null)?.code === 'FST_IDEMPOTENCY_RESPONSE_TOO_LARGE'
}
