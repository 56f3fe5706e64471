/** What happens, told once: metrics, logs and diagnostics channels listen, and the core knows none of them. */

import type { FastifyRequest } from 'fastify'

/** How a claim ended; value of the `outcome` label. */
export type ClaimOutcome =
  | 'claimed'
  | 'taken_over'
  | 'replayed'
  | 'in_progress'
  | 'mismatch'
  | 'uncertain'
  | 'not_replayable'
  | 'error'

/** The store operations that can fail. */
export type StoreOperation = 'claim' | 'complete' | 'fail' | 'renew' | 'release' | 'read'

interface Subject {
  /** Name of the store. */
  readonly store: string
  /** The scoped key; never to be logged or labelled as it is. */
  readonly scopedKey: string
  readonly request: FastifyRequest
}

/** Everything that the plugin tells. Durations in milliseconds. */
export type IdempotencyEvent = Subject &
  (
    | { readonly type: 'claim'; readonly outcome: ClaimOutcome; readonly durationMs: number }
    /**
     * The owner's record was written (or, `isOwner: false`, refused because another attempt owns it). This or
     * `record-lost` ends each claim that was `claimed` or `taken_over`.
     */
    | {
        readonly type: 'completion'
        readonly outcome: 'complete' | 'fail' | 'release'
        readonly durationMs: number
        readonly isOwner: boolean
        /** The record was written after its lease had run out, or after a 503 by `handlerTimeout`. */
        readonly isLate: boolean
        /** Bytes of the recorded body. */
        readonly bytes: number
        readonly isReplayable: boolean
      }
    /** The owner learned that it no longer is, or that its lease ran out before it could be renewed. */
    | { readonly type: 'lease-lost' }
    /** A pending claim of a vanished owner was found with its lease run out. */
    | { readonly type: 'lease-expired' }
    | { readonly type: 'store-error'; readonly operation: StoreOperation; readonly error: unknown }
    /** A completion was given up: the client has its answer, the store has no record of it. */
    | { readonly type: 'record-lost'; readonly error: unknown }
    /** The store was down and the route said `onStoreError: 'proceed'`. */
    | { readonly type: 'unprotected' }
  )

/** Called for every event, in line with the request: must be quick and must not throw. */
export type Listener = (event: IdempotencyEvent) => void

/** Passes each event to the listeners of one plugin instance. */
export class Events {
  readonly #listeners: Listener[] = []

  listen(listener: Listener): void {
    this.#listeners.push(listener)
  }

  emit(event: IdempotencyEvent): void {
    for (const listener of this.#listeners) listener(event)
  }
}

/** Why a store call failed, as a label of few values: the error's code where it has one. */
export function reasonOf(error: unknown): string {
  const { code, name } = (error ?? {}) as { code?: unknown; name?: unknown }
  if (code === 'FST_IDEMPOTENCY_STORE_TIMEOUT') return 'timeout'
  if (code === 'FST_IDEMPOTENCY_STORE_FULL') return 'full'
  if (code === 'FST_IDEMPOTENCY_RESPONSE_TOO_LARGE') return 'too_large'
  return typeof code === 'string' ? code : typeof name === 'string' ? name : 'unknown'
}
