/** Answers that come after `handlerTimeout` has answered 503: nobody hears them now, but the next retry will. */

import { ServerResponse } from 'node:http'
import type { FastifyReply } from 'fastify'
import type { OutgoingHeaders } from '../response.ts'

/** Status and headers that the handler had set when its time was up. */
export interface Head {
  readonly statusCode: number
  readonly headers: OutgoingHeaders
}

/** A response that goes nowhere. Fastify writes to it as to any other, so a late answer is serialized as usual. */
class DetachedResponse extends ServerResponse {
  override writeHead(): this {
    return this
  }

  override write(): boolean {
    return true
  }

  override end(): this {
    this.finished = true
    this.emit('finish')
    this.emit('close')
    return this
  }
}

/** The late side of one timed-out reply. */
export class LateAnswer {
  readonly #reply: FastifyReply
  readonly #head: Head
  #headersAtDivert: OutgoingHeaders | undefined
  #statusCode: number | undefined
  #given = false

  constructor(reply: FastifyReply, head: Head) {
    this.#reply = reply
    this.#head = head
  }

  /** True once the handler has given its answer. */
  get isGiven(): boolean {
    return this.#given
  }

  /** The status that the handler has set by now. */
  get statusCode(): number {
    return this.#statusCode ?? this.#head.statusCode
  }

  /** From here on (the 503 is on its way) what the handler says to its reply is its late answer. */
  divert(): void {
    if (this.#headersAtDivert !== undefined) return
    this.#headersAtDivert = this.#reply.getHeaders()
    const code = (statusCode: number) => {
      this.#statusCode = statusCode
      return this.#reply
    }
    const send = (payload?: unknown) => {
      this.give(payload)
      return this.#reply
    }
    Object.assign(this.#reply, { code, status: code, send })
  }

  /** Sends a payload or an error through Fastify's whole reply path, to nobody; only the first counts. */
  give(payload: unknown): void {
    if (this.#given) return
    this.#given = true
    const { request, log } = this.#reply
    const Reply = this.#reply.constructor as new (raw: unknown, request: unknown, log: unknown) => FastifyReply
    const reply = new Reply(new DetachedResponse(request.raw as never), request, log)
    reply.code(this.statusCode).headers(this.#headers())
    reply.send(payload)
  }

  /** What the handler had set before its time was up, and what it has changed since. */
  #headers(): Record<string, never> {
    const headers: Record<string, unknown> = { ...this.#head.headers }
    const now: OutgoingHeaders = this.#reply.getHeaders()
    const before = this.#headersAtDivert ?? now
    for (const name in now) if (now[name] !== before[name]) headers[name] = now[name]
    return headers as Record<string, never>
  }
}
