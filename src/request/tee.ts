/** Streams are copied while they are sent. */

import { PassThrough, Readable } from 'node:stream'
import type { ReplyStream } from './body.ts'

/** Where the bytes come from, whatever kind of stream they were handed over as. */
interface Source {
  /** The next chunk; `done` at the end; rejects when the source fails. */
  next(): Promise<{ done?: boolean | undefined; value?: string | Uint8Array | undefined }>
  /** Frees the source; a pending `next` may settle in any way, or never. */
  stop(): void
}

/**
 * Told once, before the end or the error is passed on to the client: the whole body; none when it was longer than the
 * limit; or the error.
 */
export type OnCopied = (body: Buffer | undefined, error?: Error) => Promise<void>

/**
 * A stream to send in place of `source`, which keeps up to `limit` bytes on the way; a negative limit keeps nothing.
 *
 * A client that goes away does not stop the source while its bytes can still be kept: the retry wants them all.
 */
export class Tee extends Readable {
  readonly #source: Source
  readonly #limit: number
  readonly #onCopied: OnCopied
  #chunks: Buffer[] = []
  #bytes = 0
  #isStarted = false
  #isCopied = false
  #wanted: (() => void) | undefined

  constructor(source: ReplyStream, limit: number, onCopied: OnCopied) {
    super()
    this.#source = sourceOf(source)
    this.#limit = limit
    this.#onCopied = onCopied
  }

  override _read(): void {
    this.#goOn()
  }

  /** The client has gone, or an error's reply took the place of this one. */
  override _destroy(error: Error | null, callback: (error: Error | null) => void): void {
    if (this.#isOver) this.#stop()
    this.#goOn()
    callback(error)
  }

  #goOn(): void {
    this.#wanted?.()
    if (this.#isStarted) return
    this.#isStarted = true
    void this.#copy()
  }

  async #copy(): Promise<void> {
    try {
      for (let next = await this.#source.next(); next.done !== true; next = await this.#source.next()) {
        await this.#take(Buffer.from(next.value as Uint8Array))
        if (this.#isCopied) return
      }
      await this.#copied(this.#isOver ? undefined : Buffer.concat(this.#chunks))
      if (!this.destroyed) this.push(null)
    } catch (reason) {
      const error = reason instanceof Error ? reason : new Error(`the reply's stream failed: ${String(reason)}`)
      await this.#copied(undefined, error)
      this.destroy(error)
    }
  }

  async #take(chunk: Buffer): Promise<void> {
    this.#bytes += chunk.length
    if (this.#isOver) this.#chunks = []
    else this.#chunks.push(chunk)
    if (this.destroyed) return this.#isOver ? this.#stop() : undefined
    if (this.push(chunk)) return
    await new Promise<void>((wanted) => {
      this.#wanted = wanted
    })
  }

  get #isOver(): boolean {
    return this.#bytes > this.#limit
  }

  /** Nobody reads, and nothing can be kept. */
  #stop(): void {
    this.#source.stop()
    void this.#copied(undefined)
  }

  async #copied(body: Buffer | undefined, error?: Error): Promise<void> {
    if (this.#isCopied) return
    this.#isCopied = true
    await this.#onCopied(body, error)
  }
}

function sourceOf(stream: ReplyStream): Source {
  if ('getReader' in stream) return webSource(stream)
  const readable = Symbol.asyncIterator in stream ? (stream as Readable) : modernized(stream)
  const chunks = readable[Symbol.asyncIterator]()
  return { next: () => chunks.next(), stop: () => void readable.destroy() }
}

function webSource(stream: ReadableStream<Uint8Array>): Source {
  const reader = stream.getReader()
  return { next: () => reader.read(), stop: () => void reader.cancel().catch(() => {}) }
}

// A stream from before streams could be iterated (Node 0.8 style): events and `pipe` only.
function modernized(stream: NodeJS.ReadableStream): Readable {
  const passed = new PassThrough()
  stream.on('error', (error) => passed.destroy(error))
  return stream.pipe(passed)
}
