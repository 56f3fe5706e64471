/** The recorded response: what is kept of a reply, which headers, and its bytes for stores that keep bytes. */

/** Headers of a recorded response, names in lower case. A repeated header is an array; an empty array: removed. */
export type StoredHeaders = Readonly<Record<string, string | readonly string[]>>

/** A response as it is recorded, before compression and before other plugins' onSend hooks. */
export interface StoredResponse {
  readonly statusCode: number
  readonly headers: StoredHeaders
  /** A string was sent as text and is replayed as text; `null` had no body, or was not recorded. */
  readonly body: string | Buffer | null
  /** False when the body was not recorded (hijacked, too large, server-sent events): a retry is told so, with 409. */
  readonly replayable: boolean
}

/** Headers as Fastify's `reply.getHeaders()` gives them. */
export type OutgoingHeaders = Readonly<Record<string, number | string | readonly string[] | undefined>>

/**
 * Never recorded: what belongs to one connection or one message (RFC 9110 §7.6.1, and `date`, `content-length`),
 * and `set-cookie`, which would hand one caller's session to whoever retries.
 */
const DENIED_HEADERS: ReadonlySet<string> = new Set([
  'connection',
  'content-length',
  'date',
  'keep-alive',
  'proxy-authenticate',
  'proxy-authentication-info',
  'proxy-authorization',
  'proxy-connection',
  'set-cookie',
  'set-cookie2',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
])

/**
 * The headers to record: those added, changed or removed since the claim, so that what earlier hooks set for each
 * request stays fresh on a replay, less the deny list and whatever `keep` refuses.
 */
export function headersToStore(
  before: OutgoingHeaders,
  now: OutgoingHeaders,
  keep?: (name: string, value: string | readonly string[]) => boolean,
): StoredHeaders {
  const stored: Record<string, string | readonly string[]> = {}
  for (const name in now) {
    const value = now[name]
    if (value === undefined || DENIED_HEADERS.has(name) || isSame(before[name], value)) continue
    const text = Array.isArray(value) ? value.map(String) : String(value)
    if (keep === undefined || keep(name, text)) stored[name] = text
  }
  for (const name in before) {
    if (now[name] === undefined && !DENIED_HEADERS.has(name)) stored[name] = []
  }
  return stored
}

function isSame(before: OutgoingHeaders[string], now: OutgoingHeaders[string]): boolean {
  return before === now || (before !== undefined && String(before) === String(now))
}

/** A response that says "this ran, but its answer was not recorded". */
export function withoutBody(statusCode: number): StoredResponse {
  return { statusCode, headers: {}, body: null, replayable: false }
}

/** Bytes of a body: 0 for none. */
export function bodyBytes(body: StoredResponse['body']): number {
  if (body === null) return 0
  return typeof body === 'string' ? Buffer.byteLength(body) : body.length
}

/**
 * A text response as one string, for stores that keep text: `<status> <headers as JSON>\n<body>`. Drivers write it
 * without a copy, where bytes take four Buffers first.
 * @returns undefined when the body is not text, or not one that every store gives back as it was
 */
export function encodeText({ statusCode, headers, body, replayable }: StoredResponse): string | undefined {
  if (typeof body !== 'string' || !replayable || !body.isWellFormed()) return undefined
  return `${statusCode} ${JSON.stringify(headers)}\n${body}`
}

/** The response in a string that {@link encodeText} made. */
export function decodeText(text: string): StoredResponse {
  const end = text.indexOf('\n')
  const space = text.indexOf(' ')
  const headers = JSON.parse(text.slice(space + 1, end)) as StoredHeaders
  return { statusCode: Number(text.slice(0, space)), headers, body: text.slice(end + 1), replayable: true }
}

const VERSION = 1
const PREFIX_BYTES = 8
const KINDS = ['omitted', 'empty', 'text', 'binary'] as const

/**
 * A response as bytes, for stores that keep bytes: version (1), kind of body (1), status (2), length of the header
 * JSON (4), header JSON, body.
 */
export function encodeResponse(response: StoredResponse): Buffer {
  const headers = Buffer.from(JSON.stringify(response.headers))
  const body = typeof response.body === 'string' ? Buffer.from(response.body) : (response.body ?? Buffer.alloc(0))
  const prefix = Buffer.alloc(PREFIX_BYTES)
  prefix.writeUInt8(VERSION, 0)
  prefix.writeUInt8(KINDS.indexOf(kindOf(response)), 1)
  prefix.writeUInt16BE(response.statusCode, 2)
  prefix.writeUInt32BE(headers.length, 4)
  return Buffer.concat([prefix, headers, body])
}

function kindOf(response: StoredResponse): (typeof KINDS)[number] {
  if (!response.replayable) return 'omitted'
  if (response.body === null) return 'empty'
  return typeof response.body === 'string' ? 'text' : 'binary'
}

/**
 * The response in bytes that {@link encodeResponse} made.
 * @throws Error when the bytes were written by a version this one does not know, or are cut short.
 */
export function decodeResponse(bytes: Buffer): StoredResponse {
  if (bytes[0] !== VERSION) {
    throw new Error(`unknown version ${bytes[0]} of a recorded response; this fastify-idempotency reads ${VERSION}`)
  }
  const kind = KINDS[bytes[1] ?? -1]
  if (bytes.length < PREFIX_BYTES || kind === undefined) throw new Error('a recorded response is damaged')
  const bodyAt = PREFIX_BYTES + bytes.readUInt32BE(4)
  const headers = JSON.parse(bytes.toString('utf8', PREFIX_BYTES, bodyAt)) as StoredHeaders
  const statusCode = bytes.readUInt16BE(2)
  const body = bytes.subarray(bodyAt)
  switch (kind) {
    case 'omitted':
      return { statusCode, headers, body: null, replayable: false }
    case 'empty':
      return { statusCode, headers, body: null, replayable: true }
    case 'text':
      return { statusCode, headers, body: body.toString('utf8'), replayable: true }
    case 'binary':
      return { statusCode, headers, body, replayable: true }
  }
}
