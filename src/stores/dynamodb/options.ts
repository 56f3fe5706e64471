/** What the store accepts, and where wrong options are refused. */

import {
  checkOptions,
  isBoolean,
  isName,
  isObject,
  isTimer,
  isWhole,
  LONGEST_TIMER_MS,
  type Rule,
  refuse,
} from '../option-rules.ts'
import { DEFAULT_ATTRIBUTES, type DynamoDBAttributes } from './attributes.ts'
import type { DynamoDBItemClient } from './calls.ts'
import type { DynamoDBIndexClient } from './list.ts'
import type { DynamoDBRegions } from './regions.ts'
import type { DynamoDBTableClient } from './table.ts'

/** The part of the SDK's `DynamoDBClient` that a store uses. */
export type DynamoDBStoreClient = DynamoDBItemClient & DynamoDBTableClient & DynamoDBIndexClient

/** Options of a `DynamoDBStore`. */
export interface DynamoDBStoreOptions {
  /** A `DynamoDBClient` of `@aws-sdk/client-dynamodb` 3. It stays the caller's to destroy. Or `regions`. */
  readonly client?: DynamoDBStoreClient
  /** In place of `client`: a table in each of several regions, each of which decides about the keys of its own. */
  readonly regions?: DynamoDBRegions
  /** The table: partition key `pk` (string), no sort key, TTL on `expires_at`. See `createTable`. */
  readonly tableName: string
  /**
   * Names of attributes that are called otherwise in an existing table.
   * @default DEFAULT_ATTRIBUTES: `pk`, `state`, `claim_token`, …
   */
  readonly attributes?: Partial<DynamoDBAttributes>
  /**
   * By how much the clocks of two nodes may differ, in ms: so much longer than its lease a claim is protected, because
   * DynamoDB has no clock that could judge. NTP keeps servers within tens of milliseconds of each other.
   * @default 1_000
   */
  readonly clockSkewMs?: number
  /**
   * How long one operation may take in all, in ms, up to a tenth less, with its pauses after throttling. The plugin waits
   * `storeTimeoutMs` for it, so a longer time here gives nothing but work that nobody waits for.
   * @default 1_000
   */
  readonly timeoutMs?: number
  /**
   * Compress responses where that saves write units.
   * @default true
   */
  readonly compress?: boolean
  /**
   * Write `credential_id` into each item, for the sparse index `by_credential`. Each claim then writes to the index, too.
   * @default false
   */
  readonly credentialIndex?: boolean
  /**
   * Milliseconds since the epoch; for tests.
   * @default Date.now
   */
  readonly now?: () => number
}

/** Options, complete. */
export type ResolvedOptions = Required<Omit<DynamoDBStoreOptions, 'attributes' | 'regions'>> & {
  readonly attributes: DynamoDBAttributes
  readonly regions: DynamoDBRegions | undefined
}

const TABLE_NAME = /^[\w.-]{3,255}$|^arn:/

const isClient: Rule = {
  takes: 'a DynamoDBClient of @aws-sdk/client-dynamodb 3',
  accepts: (value) => typeof (value as { send?: unknown } | null)?.send === 'function',
}

const RULES: Readonly<Record<keyof DynamoDBStoreOptions, Rule>> = {
  client: isClient,
  regions: {
    takes: '{ self, clients }: the name of the region of this process, and a DynamoDBClient for each region by name',
    accepts: isRegions,
  },
  tableName: {
    takes: 'the name or ARN of a table',
    accepts: (value) => typeof value === 'string' && TABLE_NAME.test(value),
  },
  attributes: isObject,
  clockSkewMs: isWhole(0, LONGEST_TIMER_MS, 'a whole number of milliseconds'),
  timeoutMs: isTimer,
  compress: isBoolean,
  credentialIndex: isBoolean,
  now: { takes: 'a function', accepts: (value) => typeof value === 'function' },
}

const ATTRIBUTE_RULES = Object.fromEntries(Object.keys(DEFAULT_ATTRIBUTES).map((name) => [name, isName]))

function isRegions(value: unknown): boolean {
  const { self, clients } = Object(value) as { self?: unknown; clients?: unknown }
  if (typeof self !== 'string' || !isObject.accepts(clients)) return false
  return Object.hasOwn(clients as object, self) && Object.values(clients as object).every(isClient.accepts)
}

/**
 * The options with their defaults.
 * @throws InvalidOptionError naming the option that is wrong, missing or unknown, and what it takes
 */
export function resolveOptions(options: DynamoDBStoreOptions): ResolvedOptions {
  const given = checkOptions('DynamoDBStore', options, RULES, ['tableName'])
  const { tableName, regions, attributes, clockSkewMs, timeoutMs, compress, credentialIndex, now } = given
  if (given.client !== undefined && regions !== undefined) {
    refuse('DynamoDBStore: takes "client" or "regions", not both')
  }
  const client = given.client ?? regions?.clients[regions.self]
  if (client === undefined) refuse(`DynamoDBStore: option "client" is missing; it takes ${isClient.takes}`)
  return {
    client,
    regions,
    tableName,
    attributes: resolveAttributes(attributes ?? {}),
    clockSkewMs: clockSkewMs ?? 1_000,
    timeoutMs: timeoutMs ?? 1_000,
    compress: compress ?? true,
    credentialIndex: credentialIndex ?? false,
    now: now ?? Date.now,
  }
}

/**
 * All names of attributes, those given in place of the defaults.
 * @throws InvalidOptionError naming the attribute that is unknown, has no usable name, or has another one's
 */
function resolveAttributes(options: Partial<DynamoDBAttributes>): DynamoDBAttributes {
  const given = checkOptions('DynamoDBStore, attributes', options, ATTRIBUTE_RULES)
  const names: DynamoDBAttributes = { ...DEFAULT_ATTRIBUTES, ...given }
  const twice = Object.values(names).find((value, index, all) => all.indexOf(value) !== index)
  if (twice !== undefined) refuse(`DynamoDBStore: option "attributes" gives the name "${twice}" to two attributes`)
  return names
}
