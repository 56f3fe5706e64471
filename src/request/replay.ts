/** Step 5: the recorded response, sent again as it was. */

import type { FastifyReply, FastifyRequest } from 'fastify'
import type { StoredResponse } from '../response.ts'
import { kSendStep, type Next, type SendStep, type SteppedRequest } from './send-step.ts'

/** Set on every replay; a first answer never has it. */
export const REPLAYED_HEADER = 'idempotent-replayed'

/** Puts the recorded body in where the first answer's body was taken. */
class Replay implements SendStep {
  readonly #body: StoredResponse['body']

  constructor(body: StoredResponse['body']) {
    this.#body = body
  }

  onSend(reply: FastifyReply, _payload: unknown, next: Next): void {
    this.#leave(reply)
    next(null, this.#body)
  }

  onError(reply: FastifyReply): void {
    this.#leave(reply) // what is sent now is an error's reply, not the replay
  }

  #leave(reply: FastifyReply): void {
    const request = reply.request as SteppedRequest
    request[kSendStep] = null
  }
}

/** Sends a recorded response; nothing is asked of or written to the store. */
export function sendReplay(request: FastifyRequest, reply: FastifyReply, response: StoredResponse): void {
  const steppedRequest = request as SteppedRequest
  steppedRequest[kSendStep] = new Replay(response.body)
  reply.code(response.statusCode)
  for (const name in response.headers) reply.header(name, copyOf(response.headers[name]))
  reply.header(REPLAYED_HEADER, 'true')
  // No payload, so that Fastify neither serializes anything nor touches the recorded content-type.
  reply.send()
}

// Later hooks may add to a header's values; the record is shared by all replays.
function copyOf(value: StoredResponse['headers'][string] | undefined): string | string[] {
  return typeof value === 'string' ? value : [...(value ?? [])]
}
