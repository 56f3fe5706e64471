/** What an item weighs, in bytes and in write units, and what compression makes of it. */

import { promisify } from 'node:util'
import { deflate } from 'node:zlib'
import type { AttributeValue } from '@aws-sdk/client-dynamodb'
import { encodeResponse, encodeText, type StoredResponse } from '../../response.ts'
import type { Claim } from '../../store.ts'
import type { DynamoDBAttributes } from './attributes.ts'
import { credentialOf, type Item, partitionKey } from './item.ts'
import type { ResolvedOptions } from './options.ts'
import { numberOf } from './values.ts'

const UNIT_BYTES = 1_024
const LONGEST_NUMBER = numberOf(Number.MAX_SAFE_INTEGER)

/** DynamoDB takes no item of more bytes, names included. */
export const MAX_ITEM_BYTES = 409_600

/** Bytes of an item as DynamoDB counts them; of numbers the most that they can take. */
export function itemBytes(item: Item): number {
  return Object.entries(item).reduce((sum, [name, value]) => sum + Buffer.byteLength(name) + valueBytes(value), 0)
}

function valueBytes({ S, N, B }: AttributeValue): number {
  if (S !== undefined) return Buffer.byteLength(S)
  if (B !== undefined) return B.byteLength
  return N === undefined ? 0 : Math.ceil(N.length / 2) + 1
}

/** Write units that an item of so many bytes takes. */
export function writeUnits(bytes: number): number {
  return Math.max(1, Math.ceil(bytes / UNIT_BYTES))
}

/** A response ready for its item. */
export interface Packed {
  readonly value: AttributeValue
  readonly isDeflated: boolean
  /** Of the whole item. */
  readonly itemBytes: number
}

/** Puts responses into the form that their items take. */
export class Packer {
  readonly #compress: boolean
  readonly #credentialIndex: boolean
  /** Of a completed item, besides what its claim and its response take. */
  readonly #fixedBytes: number
  readonly #markBytes: number

  constructor({ attributes, compress, credentialIndex }: ResolvedOptions) {
    this.#compress = compress
    this.#credentialIndex = credentialIndex
    this.#fixedBytes = itemBytes(emptyItem(attributes, credentialIndex))
    this.#markBytes = itemBytes({ [attributes.responseEncoding]: { S: 'deflate' } })
  }

  /** As text where it is text, otherwise as bytes; compressed where that saves write units. */
  async pack(claim: Claim, response: StoredResponse): Promise<Packed> {
    const text = encodeText(response)
    const value = text === undefined ? { B: encodeResponse(response) } : { S: text }
    const base = this.#fixedBytes + this.#claimBytes(claim)
    const plain = { value, isDeflated: false, itemBytes: base + valueBytes(value) }
    if (!this.#compress || writeUnits(plain.itemBytes) === 1) return plain
    const small = await promisify(deflate)('B' in value ? value.B : encodeResponse(response))
    const deflated = { value: { B: small }, isDeflated: true, itemBytes: base + this.#markBytes + small.length }
    return writeUnits(deflated.itemBytes) < writeUnits(plain.itemBytes) ? deflated : plain
  }

  #claimBytes({ scopedKey, fingerprint, token }: Claim): number {
    const credential = this.#credentialIndex ? credentialOf(scopedKey) : ''
    return [partitionKey(scopedKey), fingerprint, token, credential].reduce(
      (sum, text) => sum + Buffer.byteLength(text),
      0,
    )
  }
}

/** A completed item without what differs from claim to claim; of numbers, which are not known here, the most is taken. */
function emptyItem(attributes: DynamoDBAttributes, credentialIndex: boolean): Item {
  const nothing = { S: '' }
  return {
    [attributes.pk]: nothing,
    [attributes.state]: { S: 'completed' },
    [attributes.fingerprint]: nothing,
    [attributes.claimToken]: nothing,
    [attributes.fence]: LONGEST_NUMBER,
    [attributes.expiresAt]: LONGEST_NUMBER,
    [attributes.expiresAtMs]: LONGEST_NUMBER,
    [attributes.createdAt]: LONGEST_NUMBER,
    [attributes.version]: LONGEST_NUMBER,
    [attributes.response]: nothing,
    ...(credentialIndex && { [attributes.credentialId]: nothing }),
  }
}
