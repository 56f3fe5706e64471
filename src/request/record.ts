/** Step 4: the owner's answer is recorded, once, before it leaves. */

import type { FastifyReply, FastifyRequest } from 'fastify'
import type { Outcome } from '../options.ts'
import { bodyBytes, headersToStore, type OutgoingHeaders, type StoredResponse, withoutBody } from '../response.ts'
import { isSendable, isStream, type ReplyStream, tee, unwrapWebResponse } from './body.ts'
import { type Head, LateAnswer } from './late.ts'
import type { Ending, OwnedClaim } from './owned-claim.ts'
import { type CoveredRoute, isHandlerTimeout } from './route.ts'
import type { Next, SendStep } from './send-step.ts'

/** Statuses that say "not now" or "not you": the same request may well be answered differently next time. */
const RELEASED_STATUSES: ReadonlySet<number> = new Set([401, 403, 408, 409, 425, 429])

/** What the end of a request means, unless the route has its own `outcome`. */
function defaultOutcome(statusCode: number, error: Error | undefined): Outcome {
  if (RELEASED_STATUSES.has(statusCode)) return 'release'
  return error !== undefined || statusCode >= 500 ? 'fail' : 'complete'
}

/** Records what the handler answers. One per claimed request, and nobody else writes its record. */
export class Recorder implements SendStep {
  readonly #route: CoveredRoute
  readonly #request: FastifyRequest
  readonly #reply: FastifyReply
  readonly #claim: OwnedClaim
  readonly #headersAtClaim: OutgoingHeaders
  #phase: 'running' | 'recording' | 'recorded' = 'running'
  #error: Error | undefined
  #wasSentTwice = false
  /** Set when `handlerTimeout` has answered for the handler, which still runs. */
  late: LateAnswer | undefined

  constructor(route: CoveredRoute, request: FastifyRequest, reply: FastifyReply, claim: OwnedClaim) {
    this.#route = route
    this.#request = request
    this.#reply = reply
    this.#claim = claim
    this.#headersAtClaim = reply.getHeaders()
  }

  get isRunning(): boolean {
    return this.#phase === 'running'
  }

  onError(reply: FastifyReply, error: Error): void {
    if (this.#phase !== 'running') return
    if (reply !== this.#reply || !isHandlerTimeout(error)) this.#error = error
    else this.late ??= new LateAnswer(reply, headOf(reply))
  }

  onSend(reply: FastifyReply, payload: unknown, next: Next): void {
    if (this.#phase === 'recording') return this.#refuseSecondSend(payload)
    if (this.#phase === 'recorded' || !isSendable(payload)) return next(null, payload)
    if (this.late !== undefined && reply === this.#reply) return this.#passTimeout(this.late, payload, next)
    this.#record(reply, payload).then((sent) => next(null, sent), next)
  }

  // The 503 says that the handler is too slow, not what it did: the claim stays pending until the handler settles.
  #passTimeout(late: LateAnswer, payload: unknown, next: Next): void {
    this.#claim.markLate()
    late.divert()
    next(null, payload)
  }

  /**
   * While the first answer waits for the store Fastify still takes a second one: an async handler that also sends, an
   * error thrown after sending, a timeout. The first answer is the one that counts; the second is not passed on.
   */
  #refuseSecondSend(payload: unknown): void {
    this.#wasSentTwice = true
    if (payload !== undefined)
      this.#request.log.warn('idempotency: the reply was already sent; a second answer is ignored')
  }

  async #record(reply: FastifyReply, payload: unknown): Promise<unknown> {
    this.#phase = 'recording'
    const body = unwrapWebResponse(reply, payload)
    const head = headOf(reply)
    const outcome = this.#outcome(reply, this.#error)
    if (outcome === 'complete' && isStream(body)) {
      this.#phase = 'recorded'
      return this.#recordStream(reply, head, body)
    }
    await this.#claim.end(outcome === 'complete' ? this.#completion(head, body as StoredResponse['body']) : { outcome })
    this.#phase = 'recorded'
    if (this.#wasSentTwice) restore(reply, head)
    return body
  }

  #recordStream(reply: FastifyReply, head: Head, source: ReplyStream): ReplyStream {
    const isEventStream = String(head.headers['content-type']).startsWith('text/event-stream')
    const limit = isEventStream ? -1 : this.#route.options.maxResponseBytes
    return tee(source, limit, (body, error) => {
      const outcome = error === undefined ? 'complete' : this.#outcome(reply, error)
      if (outcome !== 'complete') return this.#claim.end({ outcome })
      return this.#claim.end(body === undefined ? bodiless(head.statusCode) : this.#completion(head, body))
    })
  }

  #completion(head: Head, body: StoredResponse['body'] | undefined): Ending {
    const { maxResponseBytes, storeHeaders } = this.#route.options
    const { statusCode } = head
    if (bodyBytes(body ?? null) > maxResponseBytes) return bodiless(statusCode)
    try {
      const headers = headersToStore(this.#headersAtClaim, head.headers, storeHeaders)
      return { outcome: 'complete', response: { statusCode, headers, body: body ?? null, replayable: true } }
    } catch (error) {
      this.#request.log.error({ err: error }, 'idempotency: storeHeaders threw; the response is not recorded')
      return bodiless(statusCode)
    }
  }

  #outcome(reply: FastifyReply, error: Error | undefined): Outcome {
    const { outcome } = this.#route.options
    if (outcome !== undefined) {
      try {
        const chosen = outcome(this.#request, reply, error)
        if (chosen === 'complete' || chosen === 'fail' || chosen === 'release') return chosen
        this.#request.log.error(
          `idempotency: outcome() must return 'complete', 'fail' or 'release', got ${String(chosen)}`,
        )
      } catch (thrown) {
        this.#request.log.error({ err: thrown }, 'idempotency: outcome() threw; the default applies')
      }
    }
    return defaultOutcome(reply.statusCode, error)
  }

  /** The answer went out behind Fastify's back (hijack, raw), or nobody will ever send one. */
  endUnrecorded(error: Error | undefined = this.#error): void {
    if (this.#phase !== 'running') return
    this.#phase = 'recorded'
    const outcome = error === undefined ? 'complete' : this.#outcome(this.#reply, error)
    void this.#claim.end(outcome === 'complete' ? bodiless(this.#reply.statusCode) : { outcome })
  }
}

function bodiless(statusCode: number): Ending {
  return { outcome: 'complete', response: withoutBody(statusCode) }
}

function headOf(reply: FastifyReply): Head {
  return { statusCode: reply.statusCode, headers: reply.getHeaders() }
}

function restore(reply: FastifyReply, { statusCode, headers }: Head): void {
  reply.code(statusCode)
  for (const name in reply.getHeaders()) reply.removeHeader(name)
  for (const name in headers) reply.header(name, headers[name])
}
