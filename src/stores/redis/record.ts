/**
 * A record as one Redis string: a line of text that scripts can read, then the response.
 *
 * ```
 * 1|<state>|<token>|<fence>|<leaseMs>|<ttlMs>|<fingerprint>\n<response bytes>
 * ```
 *
 * States: `p` pending, `f` failed, and completed in three encodings of the response: `t` text (`<status> <headers as
 * JSON>\n<body>`), `c` bytes, `z` bytes deflated. The lease needs no instant in the record:
 * a pending key is written with a TTL of `ttlMs`, so what has passed since is `ttlMs` less its PTTL, by Redis's clock.
 */

import { promisify } from 'node:util'
import { deflateRaw, inflateRaw } from 'node:zlib'
import {
  bodyBytes,
  decodeResponse,
  decodeText,
  encodeResponse,
  encodeText,
  type StoredResponse,
} from '../../response.ts'
import type { Claim, ClaimRequest, IdempotencyRecord, RecordState } from '../../store.ts'

const deflate = promisify(deflateRaw)
const inflate = promisify(inflateRaw)

const VERSION = '1'
const LINE_FEED = 0x0a
/** What the plugin's own tokens and fingerprints are made of; asking is cheaper than encoding to the same. */
const PLAIN_FIELD = /^[\w-]*$/

/** The first line of a record, read. */
export interface Head {
  readonly state: RecordState
  readonly encoding: 'text' | 'bytes' | 'deflated'
  readonly token: string
  readonly fence: number
  readonly fingerprint: string
  /** Where the response begins. */
  readonly length: number
}

/** How long a pending key is kept: its TTL, and never less than its lease. */
export function retentionOf({ ttlMs, leaseMs }: ClaimRequest): number {
  return Math.max(ttlMs, leaseMs)
}

/** A token or fingerprint as it stands in a record: any text, without the record's separators. */
export function fieldOf(text: string): string {
  return PLAIN_FIELD.test(text) ? text : encodeURIComponent(text)
}

function textOf(field: string): string {
  return field.includes('%') ? decodeURIComponent(field) : field
}

export function pendingValue(request: ClaimRequest, fence: number): string {
  const { token, fingerprint, leaseMs } = request
  return line('p', token, fence, leaseMs, retentionOf(request), fingerprint)
}

export function failedValue({ token, fingerprint, fence }: Claim): string {
  return line('f', token, fence, 0, 0, fingerprint)
}

/** The states of a completed record. */
export const COMPLETED = 'tcz'

/**
 * A completed record. Text that is not to be deflated is one string, which the driver writes without copying it; other
 * bodies are bytes.
 * @param deflateFrom size in bytes from which the response is deflated, where that makes it smaller
 */
export function completedValue(claim: Claim, response: StoredResponse, deflateFrom: number): string | Promise<Buffer> {
  const text = bodyBytes(response.body) < deflateFrom ? encodeText(response) : undefined
  if (text === undefined) return completedBytes(claim, response, deflateFrom)
  const { token, fingerprint, fence } = claim
  return line('t', token, fence, 0, 0, fingerprint) + text
}

async function completedBytes(claim: Claim, response: StoredResponse, deflateFrom: number): Promise<Buffer> {
  const { token, fingerprint, fence } = claim
  const plain = encodeResponse(response)
  const small = plain.length >= deflateFrom ? await deflate(plain) : plain
  const isDeflated = small.length < plain.length
  const head = line(isDeflated ? 'z' : 'c', token, fence, 0, 0, fingerprint)
  return Buffer.concat([Buffer.from(head), isDeflated ? small : plain])
}

function line(
  state: string,
  token: string,
  fence: number,
  leaseMs: number,
  ttlMs: number,
  fingerprint: string,
): string {
  return `${VERSION}|${state}|${fieldOf(token)}|${fence}|${leaseMs}|${ttlMs}|${fieldOf(fingerprint)}\n`
}

/** @throws Error when the record was written by a version this one does not know, or by somebody else */
export function readHead(value: Buffer): Head {
  const length = value.indexOf(LINE_FEED) + 1
  const fields = value.toString('latin1', 0, length - 1).split('|')
  const [version, letter = '', token = '', fence = '', , , fingerprint = ''] = fields
  if (version !== VERSION || fields.length !== 7) throw unknownVersion(version)
  return {
    state: stateOf(letter),
    encoding: letter === 't' ? 'text' : letter === 'z' ? 'deflated' : 'bytes',
    token: textOf(token),
    fence: Number(fence),
    fingerprint: textOf(fingerprint),
    length,
  }
}

/** A record that this version cannot read. It is never overwritten: it may stand for a payment. */
export function unknownVersion(version: string | undefined): Error {
  const found = JSON.stringify((version ?? '').slice(0, 16))
  return new Error(
    `a record of unknown version ${found} is in Redis; this fastify-idempotency reads version ${VERSION}`,
  )
}

function stateOf(letter: string): RecordState {
  switch (letter) {
    case 'p':
      return 'pending'
    case 'f':
      return 'failed'
    case 't':
    case 'c':
    case 'z':
      return 'completed'
    default:
      throw new Error(`a record in Redis has the unknown state ${JSON.stringify(letter)}`)
  }
}

/** The whole record. */
export async function readRecord(
  scopedKey: string,
  value: Buffer,
  head: Head,
  leaseRemainingMs: number,
): Promise<IdempotencyRecord> {
  const { state, token, fence, fingerprint } = head
  const response = state === 'completed' ? await readResponse(value.subarray(head.length), head) : undefined
  return { scopedKey, state, token, fence, fingerprint, leaseRemainingMs, response }
}

function readResponse(bytes: Buffer, { encoding }: Head): StoredResponse | Promise<StoredResponse> {
  switch (encoding) {
    case 'text':
      return decodeText(bytes.toString())
    case 'bytes':
      return decodeResponse(bytes)
    case 'deflated':
      return inflate(bytes).then(decodeResponse)
  }
}
