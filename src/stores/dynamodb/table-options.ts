/** What `createTable` and `checkTable` take, and the refusal of what they do not. */

import { inspect } from 'node:util'
import type { CreateTableCommandInput } from '@aws-sdk/client-dynamodb'
import { checkOptions, isBoolean, isName, isObject, isWhole, type Rule, refuse } from '../option-rules.ts'
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

const isUnits = isWhole(1)

const COMMON_RULES: Readonly<Record<string, Rule>> = {
  tableName: { takes: 'the name of a table', accepts: isName.accepts },
  attributes: isObject,
  index: isBoolean,
  timeoutMs: isUnits,
  signal: isObject,
}

/** What only `createTable` takes. */
export const CREATE_RULES: Readonly<Record<string, Rule>> = {
  capacity: {
    takes: "'on-demand' or { readUnits, writeUnits }, whole numbers of at least 1",
    accepts: (value) => value === 'on-demand' || isProvisioned(value),
  },
  deletionProtection: isBoolean,
}

/** What only `checkTable` takes. */
export const CHECK_RULES: Readonly<Record<string, Rule>> = { hasHomeRegions: isBoolean }

function isProvisioned(capacity: unknown): boolean {
  const { readUnits, writeUnits } = Object(capacity) as Record<string, unknown>
  return isUnits.accepts(readUnits) && isUnits.accepts(writeUnits)
}

/**
 * The defaults filled in.
 * @param owner the function that was called, for the message
 * @param further options that only this function has
 * @throws InvalidOptionError naming the option and what it takes
 */
export function resolveTable(owner: string, options: TableOptions, further: Readonly<Record<string, Rule>>): Wanted {
  const given = checkOptions(owner, options, { ...COMMON_RULES, ...further }, ['tableName'])
  const { tableName, attributes = {}, index = false, timeoutMs = 60_000, signal } = given
  return { tableName, attributes: resolveAttributes(owner, attributes), index, timeoutMs, signal }
}

function resolveAttributes(owner: string, given: Partial<DynamoDBAttributes>): TableAttributes {
  const { pk, expiresAt, credentialId, createdAt } = { ...DEFAULT_ATTRIBUTES, ...given }
  const attributes = { pk, expiresAt, credentialId, createdAt }
  for (const [name, value] of Object.entries(attributes)) {
    if (isName.accepts(value)) continue
    refuse(`${owner}: option "attributes.${name}" takes the name of an attribute, got ${inspect(value)}`)
  }
  return attributes
}

/** What `CreateTable` is sent for options that have been checked. */
export function definitionOf(wanted: Wanted, options: NewTableOptions): CreateTableCommandInput {
  const { capacity = 'on-demand', deletionProtection = false } = options
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
  return { ReadCapacityUnits: capacity.readUnits, WriteCapacityUnits: capacity.writeUnits }
}
