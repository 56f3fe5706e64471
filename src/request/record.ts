/** Step 4: the owner's answer is recorded, once, before it leaves. */

import { finished } from 'node:stream'
import type { FastifyReply, FastifyRequest } from 'fastify'
import type { Outcome } from '../options.ts'
import { bodyBytes, headersToStore, type OutgoingHeaders, type StoredResponse, withoutBody } from '../response.ts'
import { adopt, isSendable, isStream, type ReplyStream, unwrapWebResponse } from './body.ts'
import { type Head, LateAnswer } from './late.ts'
import type { Ending, OwnedClaim } from './owned-claim.ts'
import { hasTrailers, headersNow } from './reply-headers.ts'
import { type CoveredRoute, isHandlerTimeout } from './route.ts'
import type { Next, SendStep } from './send-step.ts'
import { Tee } from './tee.ts'

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
  /** running → recording (the bytes wait for the store) → [streaming →] recorded. */
  #phase: 'running' | 'recording' | 'streaming' | 'recorded' = 'running'
  #error: Error | undefined
  #copy: Tee | undefined
  #isReplyLeftAlone = false
  /** Set when `handlerTimeout` has answered for the handler, which still runs. */
  late: LateAnswer | undefined

  constructor(route: CoveredRoute, request: FastifyRequest, reply: FastifyReply, claim: OwnedClaim) {
    this.#route = route
    this.#request = request
    this.#reply = reply
    this.#claim = claim
    this.#headersAtClaim = headersNow(reply)
  }

  /** True until an answer has come by. */
  get isRunning(): boolean {
    return this.#phase === 'running'
  }

  /** The handler has returned its answer, so that nobody but a timeout can touch the reply while the store is asked. */
  handlerReturned(): void {
    this.#isReplyLeftAlone = this.#route.handlerTimeout === 0
  }

  onError(reply: FastifyReply, error: Error): void {
    if (this.#phase === 'streaming') return this.#replaceStream()
    if (this.#phase !== 'running') return
    if (reply !== this.#reply || !isHandlerTimeout(error)) this.#error = error
    else this.late ??= new LateAnswer(reply, headOf(reply))
  }

  // The stream failed, was timed out, or a later hook did: this client gets the error's reply, the record the copy.
  #replaceStream(): void {
    this.#phase = 'recorded'
    this.#copy?.destroy()
  }

  onSend(reply: FastifyReply, payload: unknown, next: Next): Promise<unknown> | undefined {
    if (this.#phase === 'recording' || this.#phase === 'streaming') return this.#refuseSecondSend(payload)
    if (this.late !== undefined && reply === this.#reply) this.#passTimeout(this.late)
    else if (this.#phase === 'running' && !this.#isUnrecordable(reply, payload)) return this.#record(reply, payload)
    next(null, payload)
    return undefined
  }

  // The 503 says that the handler is too slow, not what it did: the claim stays pending until the handler settles.
  #passTimeout(late: LateAnswer): void {
    this.#claim.markLate()
    late.divert()
  }

  /** What the handler has begun to write itself, or what a later hook may yet turn into something to send. */
  #isUnrecordable(reply: FastifyReply, payload: unknown): boolean {
    if (isSendable(payload) && !reply.raw.headersSent) return false
    this.endUnrecordedWhenSent()
    return true
  }

  /**
   * While the first answer waits for the store Fastify still takes a second one, which it would refuse had the first
   * been sent at once. The first answer counts; the second is not passed on.
   */
  #refuseSecondSend(payload: unknown): Promise<never> {
    if (payload !== undefined)
      this.#request.log.warn('idempotency: the reply was already sent; a second answer is ignored')
    return new Promise(() => {})
  }

  async #record(reply: FastifyReply, payload: unknown): Promise<unknown> {
    const body = unwrapWebResponse(reply, payload)
    this.#phase = 'recording'
    const head = headOf(reply)
    if (isStream(body)) adopt(body)
    const outcome = this.#outcome(reply, this.#error)
    if (outcome === 'complete' && isStream(body)) return this.#recordStream(reply, head, body)
    await this.#claim.end(outcome === 'complete' ? this.#completion(head, body as StoredResponse['body']) : { outcome })
    this.#phase = 'recorded'
    if (!this.#isReplyLeftAlone) restore(reply, head)
    return body
  }

  #recordStream(reply: FastifyReply, head: Head, source: ReplyStream): Tee {
    const isEventStream = /^text\/event-stream/i.test(String(head.headers['content-type']))
    const limit = isEventStream ? -1 : this.#route.options.maxResponseBytes
    this.#phase = 'streaming'
    this.#copy = new Tee(source, limit, async (body, error) => {
      await this.#claim.end(this.#streamEnding(reply, head, body, error))
      this.#phase = 'recorded'
    })
    return this.#copy
  }

  #streamEnding(reply: FastifyReply, head: Head, body: Buffer | undefined, error: Error | undefined): Ending {
    const outcome = error === undefined ? 'complete' : this.#outcome(reply, error)
    if (outcome !== 'complete') return { outcome }
    return body === undefined ? bodiless(head.statusCode) : this.#completion(head, body)
  }

  #completion(head: Head, body: StoredResponse['body'] | undefined): Ending {
    const { maxResponseBytes, storeHeaders } = this.#route.options
    const { statusCode } = head
    if (bodyBytes(body ?? null) > maxResponseBytes || hasTrailers(this.#reply)) return bodiless(statusCode)
    try {
      const headers = headersToStore(this.#headersAtClaim, head.headers, storeHeaders)
      return { outcome: 'complete', response: { statusCode, headers, body: kept(body), replayable: true } }
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

  /** The answer went out, or will go out, past the onSend hooks: once the response is over there is nothing to wait for. */
  endUnrecordedWhenSent(error?: Error): void {
    finished(this.#reply.raw, () => this.endUnrecorded(error))
  }

  /** Nothing was seen to be recorded, and nothing more will come. */
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

// A copy of bytes, because the handler may use its Buffer again for somebody else's answer.
function kept(body: StoredResponse['body'] | undefined): StoredResponse['body'] {
  return Buffer.isBuffer(body) ? Buffer.from(body) : (body ?? null)
}

function headOf(reply: FastifyReply): Head {
  return { statusCode: reply.statusCode, headers: headersNow(reply) }
}

/** Takes back what was done to the reply after it was sent, while the store was asked. */
function restore(reply: FastifyReply, { statusCode, headers }: Head): void {
  if (reply.statusCode !== statusCode) reply.code(statusCode)
  const now: OutgoingHeaders = reply.getHeaders()
  for (const name in now) if (!(name in headers)) reply.removeHeader(name)
  for (const name in headers) if (now[name] !== headers[name]) reply.removeHeader(name).header(name, headers[name])
}
