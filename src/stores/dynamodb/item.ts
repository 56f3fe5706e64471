/** A record as one item. */

import { hash } from 'node:crypto'
import { promisify } from 'node:util'
import { inflate } from 'node:zlib'
import type { AttributeValue } from '@aws-sdk/client-dynamodb'
import { decodeResponse, decodeText, type StoredResponse } from '../../response.ts'
import type { IdempotencyRecord, RecordState } from '../../store.ts'
import type { DynamoDBAttributes } from './attributes.ts'

/** Attributes by name, as the SDK's client takes and gives them. */
export type Item = Record<string, AttributeValue>

const MAX_KEY_BYTES = 2_048

/**
 * The partition key of a scoped key: itself, or, where DynamoDB would not take it (more than 2,048 bytes, or half a
 * surrogate pair), the digest of its UTF-16 under a prefix that no scoped key has.
 */
export function partitionKey(scopedKey: string): string {
  if (Buffer.byteLength(scopedKey) <= MAX_KEY_BYTES && scopedKey.isWellFormed()) return scopedKey
  return `idem#sha256#${hash('sha256', Buffer.from(scopedKey, 'utf16le'))}`
}

/** The credential in `idem#v1#<credential>#…`, as it stands there. */
export function credentialOf(scopedKey: string): string {
  return scopedKey.split('#')[2] ?? ''
}

/** What an item says of itself without its response. */
export interface Head {
  readonly state: RecordState
  readonly token: string
  readonly fence: number
  /** What a takeover gets. */
  readonly nextFence: number
  readonly fingerprint: string
  /** In ms since the epoch; 0 when it is not pending. */
  readonly leaseExpiresAt: number
}

/** Reads and judges items by a table's names of attributes. */
export class ItemReader {
  readonly #attributes: DynamoDBAttributes

  constructor(attributes: DynamoDBAttributes) {
    this.#attributes = attributes
  }

  /** The same question as in the conditions: is it past its end at `now` (ms)? */
  isExpired(item: Item, now: number): boolean {
    const expiresAtMs = this.#number(item, 'expiresAtMs')
    const expiresAt = this.#number(item, 'expiresAt')
    return (
      (expiresAtMs !== undefined && expiresAtMs <= now) ||
      (expiresAt !== undefined && expiresAt <= Math.floor(now / 1_000))
    )
  }

  /** Is there a record in it? What was there before a claim may be nothing but a key. */
  isEmpty(item: Item): boolean {
    return item[this.#attributes.state] === undefined
  }

  /** @throws Error when the item was written by a version this one does not know, or by somebody else */
  head(item: Item): Head {
    const format = item[this.#attributes.format]
    if (format !== undefined) throw unknownVersion(format.S ?? format.N)
    const fence = this.#number(item, 'fence') ?? 0
    return {
      state: stateOf(this.#text(item, 'state')),
      token: this.#text(item, 'claimToken'),
      fence: this.#isAfterExpired(item) ? 1 : fence,
      nextFence: fence + 1,
      fingerprint: this.#text(item, 'fingerprint'),
      leaseExpiresAt: this.#number(item, 'leaseExpiresAt') ?? 0,
    }
  }

  /** Did the claim replace a record that had expired, and has its owner not written since? */
  #isAfterExpired(item: Item): boolean {
    const previousExpiresAt = this.#number(item, 'previousExpiresAt')
    return previousExpiresAt !== undefined && previousExpiresAt <= (this.#number(item, 'createdAt') ?? 0)
  }

  /** The recorded response of a completed item. */
  async response(item: Item): Promise<StoredResponse> {
    const { S: text, B } = item[this.#attributes.response] ?? {}
    if (text !== undefined) return decodeText(text)
    const bytes = asBuffer(B)
    const encoding = item[this.#attributes.responseEncoding]?.S
    if (encoding === undefined) return decodeResponse(bytes)
    if (encoding !== 'deflate') throw new Error(`a response in DynamoDB has the unknown encoding ${show(encoding)}`)
    return decodeResponse(await promisify(inflate)(bytes))
  }

  /** @param leaseMarginMs by how much a lease is honoured past its end */
  async record(scopedKey: string, item: Item, now: number, leaseMarginMs: number): Promise<IdempotencyRecord> {
    const { state, token, fence, fingerprint, leaseExpiresAt } = this.head(item)
    const isPending = state === 'pending'
    return {
      scopedKey,
      state,
      token,
      fence,
      fingerprint,
      leaseRemainingMs: isPending ? Math.max(0, leaseExpiresAt + leaseMarginMs - now) : 0,
      response: state === 'completed' ? await this.response(item) : undefined,
    }
  }

  #text(item: Item, name: keyof DynamoDBAttributes): string {
    return item[this.#attributes[name]]?.S ?? ''
  }

  #number(item: Item, name: keyof DynamoDBAttributes): number | undefined {
    const digits = item[this.#attributes[name]]?.N
    return digits === undefined ? undefined : Number(digits)
  }
}

function asBuffer(bytes: Uint8Array = new Uint8Array()): Buffer {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength)
}

function stateOf(text: string): RecordState {
  if (text === 'pending' || text === 'completed' || text === 'failed') return text
  throw new Error(`an item in DynamoDB has the unknown state ${show(text)}`)
}

/** An item that this version cannot read. It is never overwritten: it may stand for a payment. */
function unknownVersion(version: string | undefined): Error {
  return new Error(
    `a record of unknown version ${show(version ?? '')} is in DynamoDB; this fastify-idempotency reads the first one`,
  )
}

function show(text: string): string {
  return JSON.stringify(text.slice(0, 16))
}
