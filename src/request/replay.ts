/** Step 5: the recorded response, sent again as it was. */

import type { FastifyReply, FastifyRequest } from 'fastify'
import type { StoredResponse } from '../response.ts'
import { kSendStep, type Next, type SendStep, type SteppedRequest } from './send-step.ts'

/** Set on every replay; a first answer never has it. */
const REPLAYED_HEADER = 'idempotent-replayed'

/** Puts the recorded body in where the first answer's body was taken. */
class Replay implements SendStep {
  readonly #response: StoredResponse
  #isOver = false

  constructor(response: StoredResponse) {
    this.#response = response
  }

  onSend(_reply: FastifyReply, payload: unknown, next: Next): undefined {
    if (this.#isOver) return next(null, payload) as undefined
    this.#isOver = true
    const { body } = this.#response
    // A copy, because later hooks may write into it, and the record is shared by all replays.
    next(null, Buffer.isBuffer(body) ? Buffer.from(body) : body)
  }

  /** What is sent now is an error's reply: nothing of the recorded one may stay on it. */
  onError(reply: FastifyReply): void {
    this.#isOver = true
    reply.removeHeader(REPLAYED_HEADER)
    for (const name in this.#response.headers) reply.removeHeader(name)
  }
}

/** Sends a recorded response; nothing is asked of or written to the store. */
export function sendReplay(request: FastifyRequest, reply: FastifyReply, response: StoredResponse): void {
  const steppedRequest = request as SteppedRequest
  steppedRequest[kSendStep] = new Replay(response)
  reply.code(response.statusCode)
  for (const name in response.headers) replayHeader(reply, name, response.headers[name] ?? [])
  reply.header(REPLAYED_HEADER, 'true')
  // No payload, so that Fastify neither serializes anything nor touches the recorded content-type.
  reply.send()
}

function replayHeader(reply: FastifyReply, name: string, value: string | readonly string[]): void {
  if (typeof value === 'string') reply.header(name, value)
  else if (value.length === 0) reply.removeHeader(name)
  else reply.header(name, [...value])
}
