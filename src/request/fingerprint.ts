/** Step 2: the fingerprint, which tells a retry from a reuse of the key for something else. */

import { hash } from 'node:crypto'
import stringify from 'safe-stable-stringify'
import { IdempotencyError } from '../errors.ts'
import { digestible } from './digestible.ts'

/** What is digested of a request unless the route has its own `fingerprint`. */
export interface FingerprintSource {
  readonly method: string
  /** Path and query as sent. */
  readonly url: string
  /** Parsed body; undefined when there was none. */
  readonly body: unknown
}

/** SHA-256 (base64url) over method, path and query, and the body: JSON canonically, bytes as bytes, absent as absent. */
export function fingerprintOf(source: FingerprintSource, ignored?: IgnoredFields): string {
  return digest(`${source.method} ${source.url}`, source.body, ignored)
}

/** SHA-256 (base64url) of what a route's own `fingerprint` returned. */
export function fingerprintOfChoice(choice: unknown): string {
  return digest('', choice)
}

// The tag after the line keeps a JSON text sent as text/plain apart from the same JSON sent as JSON.
function digest(line: string, body: unknown, ignored?: IgnoredFields): string {
  if (body === undefined || isStream(body)) return sha256(`${line}\nabsent`)
  if (typeof body === 'string') return sha256(`${line}\ntext\n${body}`)
  if (ArrayBuffer.isView(body)) return sha256(Buffer.concat([Buffer.from(`${line}\nbytes\n`), bytesOf(body)]))
  return sha256(`${line}\njson\n${canonicalJson(body, ignored)}`)
}

function sha256(text: string | Buffer): string {
  return hash('sha256', text, 'base64url') // a third shorter than hex, in every record
}

// A body that the handler reads itself cannot be read twice: such a route needs a `fingerprint` of its own.
function isStream(body: unknown): boolean {
  return typeof (body as { pipe?: unknown } | null)?.pipe === 'function'
}

function bytesOf(view: ArrayBufferView): Uint8Array {
  return new Uint8Array(view.buffer, view.byteOffset, view.byteLength)
}

function canonicalJson(body: unknown, ignored?: IgnoredFields): string | undefined {
  try {
    const plain = typeof body === 'object' && body !== null ? digestible(body) : body
    return stringify(ignored === undefined ? plain : ignored.omitFrom(plain))
  } catch (error) {
    if (!(error instanceof RangeError)) throw error
    throw new IdempotencyError(
      'FST_IDEMPOTENCY_BODY_TOO_DEEP',
      'The request body is nested too deeply to be compared with a retry.',
    )
  }
}

/**
 * Body members that may differ between retries. A plain name means that member at any depth; a dotted path means
 * that one place, seen through arrays: `trace_id`, `meta.sent_at`, `items.nonce`.
 */
export class IgnoredFields {
  readonly #names: ReadonlySet<string>
  readonly #paths: ReadonlySet<string>

  constructor(fields: readonly string[]) {
    this.#names = new Set(fields.filter((field) => !field.includes('.')))
    this.#paths = new Set(fields.filter((field) => field.includes('.')))
  }

  /** A copy of a parsed body without the ignored members; what is not an object or array comes back as it is. */
  omitFrom(body: unknown): unknown {
    return this.#omit(body, '')
  }

  #omit(value: unknown, path: string): unknown {
    if (Array.isArray(value)) return value.map((item) => this.#omit(item, path))
    if (value === null || typeof value !== 'object' || ArrayBuffer.isView(value)) return value
    const kept: [string, unknown][] = []
    for (const [name, member] of Object.entries(value)) {
      const memberPath = path === '' ? name : `${path}.${name}`
      if (this.#names.has(name) || this.#paths.has(memberPath)) continue
      kept.push([name, this.#omit(member, memberPath)])
    }
    return Object.fromEntries(kept)
  }
}
