/**
 * The errors a client sees, as problem details (RFC 9457), and those a store throws.
 * A client's retry logic needs only `retryable` and `safeNewKey`.
 */

import createError from '@fastify/error'

interface Answer {
  readonly statusCode: number
  /** Short, the same for every occurrence (RFC 9457 §3.1.3). */
  readonly title: string
  /** May the same request be sent again with the same key? */
  readonly retryable: boolean
  /** May the client retry with a new key without risk of a double effect? */
  readonly safeNewKey: boolean
}

const ANSWERS = {
  FST_IDEMPOTENCY_KEY_MISSING: {
    statusCode: 400,
    title: 'Idempotency-Key is missing',
    retryable: false,
    safeNewKey: true,
  },
  FST_IDEMPOTENCY_KEY_INVALID: {
    statusCode: 400,
    title: 'Idempotency-Key is invalid',
    retryable: false,
    safeNewKey: true,
  },
  FST_IDEMPOTENCY_BODY_TOO_DEEP: {
    statusCode: 400,
    title: 'The request body is nested too deeply',
    retryable: false,
    safeNewKey: true,
  },
  FST_IDEMPOTENCY_KEY_REUSED: {
    statusCode: 422,
    title: 'Idempotency-Key is already used',
    retryable: false,
    safeNewKey: false,
  },
  FST_IDEMPOTENCY_IN_PROGRESS: {
    statusCode: 409,
    title: 'A request is outstanding for this Idempotency-Key',
    retryable: true,
    safeNewKey: false,
  },
  FST_IDEMPOTENCY_UNCERTAIN: {
    statusCode: 409,
    title: 'The outcome of an earlier attempt is unknown',
    retryable: false,
    safeNewKey: false,
  },
  FST_IDEMPOTENCY_NOT_REPLAYABLE: {
    statusCode: 409,
    title: 'The response was not recorded',
    retryable: false,
    safeNewKey: false,
  },
  FST_IDEMPOTENCY_STORE_UNAVAILABLE: {
    statusCode: 503,
    title: 'Idempotency store unavailable',
    retryable: true,
    safeNewKey: false,
  },
} as const satisfies Record<string, Answer>

/** Codes of the answers that the plugin itself gives to a client. */
export type IdempotencyErrorCode = keyof typeof ANSWERS

// A rejected duplicate is an answer, not a defect: no stack is captured, so that a storm of them stays cheap.
const Rejected = createError('FST_IDEMPOTENCY' as string, '%s', 500 as number, Error, false)

/** What the plugin answers instead of running the route; with `rejectWith: 'throw'`, what the error handler gets. */
export class IdempotencyError extends Rejected {
  override readonly code: IdempotencyErrorCode
  override readonly statusCode: number
  readonly title: string
  readonly retryable: boolean
  readonly safeNewKey: boolean
  /** Fastify's default error handler sets these on the reply. */
  readonly headers: Readonly<Record<string, string>>

  /**
   * @param detail what happened, for the person who reads the response; never a stored or another caller's value
   * @param retryAfterMs becomes `Retry-After` in whole seconds, rounded up, at least 1
   */
  constructor(code: IdempotencyErrorCode, detail: string, retryAfterMs?: number) {
    super(detail)
    const answer = ANSWERS[code]
    this.code = code
    this.statusCode = answer.statusCode
    this.title = answer.title
    this.retryable = answer.retryable
    this.safeNewKey = answer.safeNewKey
    this.headers =
      retryAfterMs === undefined ? {} : { 'retry-after': String(Math.max(1, Math.ceil(retryAfterMs / 1000))) }
  }
}

/** The members of a problem document (RFC 9457 §3), and ours. `type` is `about:blank` without a documentation URL. */
export function problemOf(error: IdempotencyError, documentationUrl?: string) {
  return {
    type: documentationUrl ?? 'about:blank',
    title: error.title,
    status: error.statusCode,
    detail: error.message,
    code: error.code,
    retryable: error.retryable,
    safeNewKey: error.safeNewKey,
  }
}

/** A wrong option, at `register` or route time. */
export const InvalidOptionError = createError(
  'FST_IDEMPOTENCY_INVALID_OPTION',
  'fastify-idempotency: %s',
  500,
  TypeError,
)

/** Thrown by a store that has no room for one more record; the request gets 503. */
export const StoreFullError = createError('FST_IDEMPOTENCY_STORE_FULL', '%s', 503)

/** Thrown by `complete` when the store can never take this response; the record is completed without a body. */
export const ResponseTooLargeError = createError('FST_IDEMPOTENCY_RESPONSE_TOO_LARGE', '%s', 500)

/** A store call that outlived `storeTimeoutMs`: whether it happened is unknown. */
export const StoreTimeoutError = createError(
  'FST_IDEMPOTENCY_STORE_TIMEOUT',
  'no answer from the store within %d ms',
  503,
)

/**
 * For stores: refuses a duration that no clock can honour, before anything is written with it.
 * @throws TypeError naming the duration
 */
export function assertDuration(name: string, value: number): void {
  if (Number.isSafeInteger(value) && value >= 1) return
  throw new TypeError(`${name} takes a whole number of milliseconds, at least 1, got ${value}`)
}
