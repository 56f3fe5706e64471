/** What a reply can consist of, as it arrives in the first onSend hook. */

import type { FastifyReply } from 'fastify'

/** What Fastify sends as a stream: Node's and the web's. */
export type ReplyStream = NodeJS.ReadableStream | ReadableStream<Uint8Array>

export function isStream(payload: unknown): payload is ReplyStream {
  if (typeof payload !== 'object' || payload === null) return false
  const { pipe, getReader } = payload as { pipe?: unknown; getReader?: unknown }
  return typeof pipe === 'function' || typeof getReader === 'function'
}

/**
 * From now on somebody answers for the stream's errors. One may have failed before it was sent, and it may fail while
 * the store is asked: without a listener that would end the process.
 */
export function adopt(stream: ReplyStream): void {
  if ('on' in stream) stream.on('error', () => {})
}

function isWebResponse(payload: unknown): payload is Response {
  return typeof payload === 'object' && Object.prototype.toString.call(payload) === '[object Response]'
}

/** True for what Fastify can send. Anything else makes it throw, unless another onSend hook turns it into something. */
export function isSendable(payload: unknown): boolean {
  if (payload === undefined || payload === null || typeof payload === 'string' || Buffer.isBuffer(payload)) return true
  if (isWebResponse(payload)) return !payload.bodyUsed && payload.body?.locked !== true
  return isStream(payload) && (payload as { locked?: boolean }).locked !== true
}

/**
 * Moves status and headers of a web `Response` to the reply, as Fastify would later, and gives back its body.
 * @throws for a status that Fastify does not send (`Response.error()` has 0)
 */
export function unwrapWebResponse(reply: FastifyReply, payload: unknown): unknown {
  if (!isWebResponse(payload)) return payload
  reply.code(payload.status)
  for (const [name, value] of payload.headers) reply.header(name, value)
  return payload.body
}
