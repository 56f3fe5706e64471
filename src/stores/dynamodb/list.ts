/** One tenant's keys, page by page, from the index `by_credential`: for the day when someone asks what was charged. */

import { hash } from 'node:crypto'
import { QueryCommand, type QueryCommandOutput } from '@aws-sdk/client-dynamodb'
import { InvalidOptionError } from '../../errors.ts'
import { CREDENTIAL_INDEX, type TableAttributes } from './table-options.ts'

/** The part of the SDK's `DynamoDBClient` that is used, to look into the index. */
export interface DynamoDBIndexClient {
  send(command: QueryCommand, options: { abortSignal?: AbortSignal }): Promise<QueryCommandOutput>
}

/** Which page, and how long it may be. */
export interface PageRequest {
  /** Keys per page, 1 to 100. @default 25 */
  readonly limit?: number
  /** `next` of the page before; without it the first page, which has the newest keys. */
  readonly token?: string | undefined
  /** Of a store with several regions, the one whose keys are asked for. @default the region of this process */
  readonly region?: string | undefined
  readonly signal?: AbortSignal | undefined
}

/** What the index knows of a record; `store.read(scopedKey)` has the rest. */
export interface ListedKey {
  readonly scopedKey: string
  /** When the key was claimed: milliseconds since the epoch. */
  readonly createdAt: number
}

/** A page of keys, newest first. */
export interface KeyPage {
  readonly keys: readonly ListedKey[]
  /** Asks for the page after this one, of the same table, region and credential; undefined on the last. */
  readonly next: string | undefined
}

const LARGEST_PAGE = 100
const TOKEN_VERSION = 1

/**
 * A page of the keys of one credential. The index follows the table within moments and keeps expired items until
 * DynamoDB deletes them, so a key that is listed may have no live record any more.
 * @param credentialId the credential as it stands in its scoped keys
 * @throws InvalidOptionError naming the credential, the limit, or a token that is not of this table and credential
 */
export async function listByCredential(
  client: DynamoDBIndexClient,
  tableName: string,
  attributes: TableAttributes,
  credentialId: string,
  { limit = 25, token, region, signal }: PageRequest = {},
): Promise<KeyPage> {
  if (!Number.isInteger(limit) || limit < 1 || limit > LARGEST_PAGE) {
    throw refused(`"limit" takes a whole number of 1 to ${LARGEST_PAGE}, got ${String(limit)}`)
  }
  if (typeof credentialId !== 'string' || credentialId === '') {
    throw refused(`the credential is a string that is not empty, got ${typeof credentialId}`)
  }
  const listing = listingOf(tableName, credentialId, region)
  const start = token === undefined ? undefined : startOf(token, listing)
  const command = new QueryCommand({
    TableName: tableName,
    IndexName: CREDENTIAL_INDEX,
    KeyConditionExpression: '#credential = :credential',
    ExpressionAttributeNames: { '#credential': attributes.credentialId },
    ExpressionAttributeValues: { ':credential': { S: credentialId } },
    ExclusiveStartKey: start && indexKey(start, attributes, credentialId),
    ScanIndexForward: false,
    Limit: limit,
  })
  const page = await client.send(command, signal ? { abortSignal: signal } : {})
  const last = page.LastEvaluatedKey
  return {
    keys: (page.Items ?? []).map((item) => keyOf(item, attributes)),
    next: last && tokenOf(keyOf(last, attributes), listing),
  }
}

type Item = NonNullable<QueryCommandOutput['LastEvaluatedKey']>

function keyOf(item: Item, { pk, createdAt }: TableAttributes): ListedKey {
  return { scopedKey: item[pk]?.S as string, createdAt: Number(item[createdAt]?.N) }
}

// The credential is always the caller's, never the token's: no token leads into the keys of somebody else.
function indexKey({ scopedKey, createdAt }: ListedKey, attributes: TableAttributes, credentialId: string): Item {
  return {
    [attributes.pk]: { S: scopedKey },
    [attributes.credentialId]: { S: credentialId },
    [attributes.createdAt]: { N: String(createdAt) },
  }
}

/** What ties a token to its table, credential and region, without showing the credential. */
function listingOf(tableName: string, credentialId: string, region: string | undefined): string {
  return hash('sha256', JSON.stringify([tableName, credentialId, region])).slice(0, 16)
}

function tokenOf({ scopedKey, createdAt }: ListedKey, listing: string): string {
  return Buffer.from(JSON.stringify([TOKEN_VERSION, listing, scopedKey, createdAt])).toString('base64url')
}

function startOf(token: string, listing: string): ListedKey {
  const [version, ofListing, scopedKey, createdAt] = fieldsOf(token)
  if (version !== TOKEN_VERSION || typeof scopedKey !== 'string' || !Number.isSafeInteger(createdAt)) {
    throw refused('"token" is not one that listByCredential gave')
  }
  if (ofListing !== listing) throw refused('"token" is one of another table, credential or region')
  return { scopedKey, createdAt: createdAt as number }
}

function fieldsOf(token: string): readonly unknown[] {
  try {
    const fields: unknown = JSON.parse(Buffer.from(token, 'base64url').toString())
    return Array.isArray(fields) ? fields : []
  } catch {
    return []
  }
}

function refused(reason: string): Error {
  return new InvalidOptionError(`listByCredential: ${reason}`)
}
