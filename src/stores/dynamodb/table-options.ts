/** What `createTable` and `checkTable` take, and the refusal of what they do not. */

import { inspect } from 'node:util'
import type { CreateTableCommandInput } from '@aws-sdk/client-dynamodb'
import { InvalidOptionError } from '../../errors.ts'
import { DEFAULT_ATTRIBUTES, type DynamoDBAttributes } from './attributes.ts'

/** The attributes that DynamoDB itself has to know: keys of table and index, and what its TTL looks at. */
export type TableAttributes = Pick<DynamoDBAttributes, 'pk' | 'expiresAt' | 'credentialId' | 'createdAt'>

/** Name of the sparse index on `credential_id`. */
export const CREDENTIAL_INDEX = 'by_credential'

/** Which table, and what is expected of it. */
export interface TableOptions {
  readonly tableName: string
  /** Names of attributes, as the store takes them; those that are not in a key and not the TTL's are passed over. */
  readonly attributes?: Partial<DynamoDBAttributes> | undefined
  /** Is the index `by_credential` wanted? @default false */
  readonly index?: boolean | undefined
  /** How long all of it may take, in ms. @default 60_000 */
  readonly timeoutMs?: number | undefined
  readonly signal?: AbortSignal | undefined
}

/** A table to be made. */
export interface NewTableOptions extends TableOptions {
  /** How it is paid for. With units, the index gets as many. @default 'on-demand' */
  readonly capacity?: 'on-demand' | { readonly readUnits: number; readonly writeUnits: number } | undefined
  /** Refuse `DeleteTable` until it is switched off: when a table is gone every request runs again. @default false */
  readonly deletionProtection?: boolean | undefined
}

/** A table to be checked. */
export interface TableCheckOptions extends TableOptions {
  /** Does the store send each key to its home region? Then replicas are no danger. @default false */
  readonly hasHomeRegions?: boolean | undefined
}

/** Options with their defaults. */
export interface Wanted {
  readonly tableName: string
  readonly attributes: TableAttributes
  readonly index: boolean
  readonly timeoutMs: number
  readonly signal: AbortSignal | undefined
}

const COMMON = ['tableName', 'attributes', 'index', 'timeoutMs', 'signal']

/**
 * The defaults filled in.
 * @param owner the function that was called, for the message
 * @param further names of options that only this function has
 * @throws InvalidOptionError naming the option and what it takes
 */
export function resolveTable(owner: string, options: TableOptions, further: readonly string[]): Wanted {
  const known = [...COMMON, ...further]
  const unknown = Object.keys(options).find((name) => !known.includes(name))
  if (unknown) refuse(`${owner}: unknown option "${unknown}"; known options: ${known.join(', ')}`)
  const { tableName, attributes = {}, index = false, timeoutMs = 60_000, signal } = options
  if (!isName(tableName)) refuse(wrong(owner, 'tableName', 'the name of a table', tableName))
  if (!isUnits(timeoutMs)) refuse(wrong(owner, 'timeoutMs', 'a whole number of at least 1', timeoutMs))
  if (typeof index !== 'boolean') refuse(wrong(owner, 'index', 'true or false', index))
  return { tableName, attributes: resolveAttributes(owner, attributes), index, timeoutMs, signal }
}

function resolveAttributes(owner: string, given: Partial<DynamoDBAttributes>): TableAttributes {
  const { pk, expiresAt, credentialId, createdAt } = { ...DEFAULT_ATTRIBUTES, ...given }
  const attributes = { pk, expiresAt, credentialId, createdAt }
  for (const [name, value] of Object.entries(attributes)) {
    if (!isName(value)) refuse(wrong(owner, `attributes.${name}`, 'the name of an attribute', value))
  }
  return attributes
}

/**
 * What `CreateTable` is sent.
 * @throws InvalidOptionError naming the option and what it takes
 */
export function definitionOf(wanted: Wanted, options: NewTableOptions): CreateTableCommandInput {
  const { capacity = 'on-demand', deletionProtection = false } = options
  if (typeof deletionProtection !== 'boolean') {
    refuse(wrong('createTable', 'deletionProtection', 'true or false', deletionProtection))
  }
  const { pk, credentialId, createdAt } = wanted.attributes
  const units = unitsOf(capacity)
  const index = {
    IndexName: CREDENTIAL_INDEX,
    KeySchema: [hashKey(credentialId), { AttributeName: createdAt, KeyType: 'RANGE' as const }],
    Projection: { ProjectionType: 'KEYS_ONLY' as const },
    ProvisionedThroughput: units,
  }
  return {
    TableName: wanted.tableName,
    KeySchema: [hashKey(pk)],
    AttributeDefinitions: wanted.index ? [text(pk), text(credentialId), number(createdAt)] : [text(pk)],
    BillingMode: units ? 'PROVISIONED' : 'PAY_PER_REQUEST',
    ProvisionedThroughput: units,
    GlobalSecondaryIndexes: wanted.index ? [index] : undefined,
    DeletionProtectionEnabled: deletionProtection,
  }
}

const hashKey = (AttributeName: string) => ({ AttributeName, KeyType: 'HASH' as const })
const text = (AttributeName: string) => ({ AttributeName, AttributeType: 'S' as const })
const number = (AttributeName: string) => ({ AttributeName, AttributeType: 'N' as const })

function unitsOf(capacity: NonNullable<NewTableOptions['capacity']>) {
  if (capacity === 'on-demand') return undefined
  const { readUnits, writeUnits } = Object(capacity) as Record<string, unknown>
  if (isUnits(readUnits) && isUnits(writeUnits)) return { ReadCapacityUnits: readUnits, WriteCapacityUnits: writeUnits }
  const takes = "'on-demand' or { readUnits, writeUnits }, whole numbers of at least 1"
  return refuse(wrong('createTable', 'capacity', takes, capacity))
}

function isName(value: unknown): boolean {
  return typeof value === 'string' && value !== ''
}

function isUnits(value: unknown): value is number {
  return Number.isInteger(value) && (value as number) >= 1
}

function wrong(owner: string, name: string, takes: string, value: unknown): string {
  return `${owner}: option "${name}" takes ${takes}, got ${inspect(value, { depth: 1, breakLength: Infinity })}`
}

function refuse(message: string): never {
  throw new InvalidOptionError(message)
}
