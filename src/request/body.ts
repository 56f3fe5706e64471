/** Bodies that come in pieces: web responses unwrapped, streams copied while they are sent. */

import { Readable } from 'node:stream'
import type { FastifyReply } from 'fastify'

/** What Fastify sends as a stream: Node's and the web's. */
export type ReplyStream = NodeJS.ReadableStream | ReadableStream

export function isStream(payload: unknown): payload is ReplyStream {
  const { pipe, getReader } = (payload ?? {}) as { pipe?: unknown; getReader?: unknown }
  return typeof pipe === 'function' || typeof getReader === 'function'
}

function isWebResponse(payload: unknown): payload is Response {
  return Object.prototype.toString.call(payload) === '[object Response]'
}

/** True for what Fastify can send; anything else makes it throw, and the error's reply is the one to record. */
export function isSendable(payload: unknown): boolean {
  if (payload === undefined || payload === null || typeof payload === 'string' || Buffer.isBuffer(payload)) return true
  if (isWebResponse(payload)) return !payload.bodyUsed
  return isStream(payload) && (payload as { locked?: boolean }).locked !== true
}

/** Moves status and headers of a web `Response` to the reply, as Fastify would later, and gives back its body. */
export function unwrapWebResponse(reply: FastifyReply, payload: unknown): unknown {
  if (!isWebResponse(payload)) return payload
  reply.code(payload.status)
  for (const [name, value] of payload.headers) reply.header(name, value)
  return payload.body
}

/**
 * A copy of `source` to send, which keeps up to `limit` bytes of it on the way.
 *
 * `settle` runs once, before the end (or the error) is passed on: with the whole body, without one when it was longer
 * than `limit`, or with the error. A reader that goes away early does not stop the source while it may still be kept.
 */
export function tee(
  source: ReplyStream,
  limit: number,
  settle: (body: Buffer | undefined, error?: Error) => Promise<void>,
): Readable {
  return Readable.from(copy(chunksOf(source), new Copy(limit), settle), { objectMode: false })
}

async function* copy(
  chunks: AsyncIterator<string | Uint8Array>,
  kept: Copy,
  settle: (body: Buffer | undefined, error?: Error) => Promise<void>,
) {
  let finished = false
  try {
    for (let next = await chunks.next(); next.done !== true; next = await chunks.next()) {
      const bytes = Buffer.from(next.value as Uint8Array)
      kept.add(bytes)
      yield bytes
    }
    finished = true
    await settle(kept.body())
  } catch (error) {
    finished = true
    await settle(undefined, error as Error)
    throw error
  } finally {
    if (!finished) await drain(chunks, kept, settle)
  }
}

/** The client has gone. Its retry wants the answer all the same. */
async function drain(
  chunks: AsyncIterator<string | Uint8Array>,
  kept: Copy,
  settle: (body: Buffer | undefined, error?: Error) => Promise<void>,
): Promise<void> {
  try {
    while (!kept.isOver) {
      const next = await chunks.next()
      if (next.done === true) break
      kept.add(Buffer.from(next.value as Uint8Array))
    }
    await chunks.return?.()
    await settle(kept.body())
  } catch (error) {
    await settle(undefined, error as Error)
  }
}

function chunksOf(source: ReplyStream): AsyncIterator<string | Uint8Array> {
  const iterable = Symbol.asyncIterator in source ? source : new Readable().wrap(source as NodeJS.ReadableStream)
  return (iterable as AsyncIterable<string | Uint8Array>)[Symbol.asyncIterator]()
}

/** What is kept of a stream: everything up to the limit, nothing once it is over. */
class Copy {
  readonly #limit: number
  #chunks: Buffer[] = []
  #bytes = 0

  constructor(limit: number) {
    this.#limit = limit
  }

  get isOver(): boolean {
    return this.#bytes > this.#limit
  }

  add(chunk: Buffer): void {
    this.#bytes += chunk.length
    if (this.isOver) this.#chunks = []
    else this.#chunks.push(chunk)
  }

  body(): Buffer | undefined {
    return this.isOver ? undefined : Buffer.concat(this.#chunks)
  }
}
