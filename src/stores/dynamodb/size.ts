/** What an item weighs, in bytes and in write units, and what compression makes of it. */

import { promisify } from 'node:util'
import { deflate } from 'node:zlib'
import type { AttributeValue } from '@aws-sdk/client-dynamodb'
import { encodeResponse, type StoredResponse } from '../../response.ts'
import type { Claim } from '../../store.ts'
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
  readonly bytes: Buffer
  readonly isDeflated: boolean
  /** Of the whole item. */
  readonly itemBytes: number
}

/**
 * Encodes a response, compressed where that saves write units.
 * Of what is not known here of the item (`version`, instants) the most is taken.
 */
export async function packed(claim: Claim, response: StoredResponse, options: ResolvedOptions): Promise<Packed> {
  const bytes = encodeResponse(response)
  const base = itemWithout(claim, options)
  const plain = { bytes, isDeflated: false, itemBytes: itemBytes(base) + bytes.length }
  if (!options.compress || writeUnits(plain.itemBytes) === 1) return plain
  const small = await promisify(deflate)(bytes)
  const marked = { ...base, [options.attributes.responseEncoding]: { S: 'deflate' } }
  const deflated = { bytes: small, isDeflated: true, itemBytes: itemBytes(marked) + small.length }
  return writeUnits(deflated.itemBytes) < writeUnits(plain.itemBytes) ? deflated : plain
}

/** A completed item, its response empty. */
function itemWithout({ scopedKey, fingerprint, token, fence }: Claim, options: ResolvedOptions): Item {
  const { attributes, credentialIndex } = options
  return {
    [attributes.pk]: { S: partitionKey(scopedKey) },
    [attributes.state]: { S: 'completed' },
    [attributes.fingerprint]: { S: fingerprint },
    [attributes.claimToken]: { S: token },
    [attributes.fence]: numberOf(fence),
    [attributes.expiresAt]: LONGEST_NUMBER,
    [attributes.expiresAtMs]: LONGEST_NUMBER,
    [attributes.createdAt]: LONGEST_NUMBER,
    [attributes.version]: LONGEST_NUMBER,
    [attributes.response]: { B: new Uint8Array() },
    ...(credentialIndex && { [attributes.credentialId]: { S: credentialOf(scopedKey) } }),
  }
}
