/** What a month of idempotency keys costs: DynamoDB on demand, DynamoDB provisioned, and a Redis beside them. */

import { InvalidOptionError } from '../../errors.ts'

/** US dollars, and what one gets for them. */
export interface Prices {
  /** A million write request units, on demand. @default 0.625 */
  readonly millionWriteUnits: number
  /** One provisioned write capacity unit (WCU) for an hour. @default 0.00065 */
  readonly provisionedUnitHour: number
  /** 10^9 bytes in the table for a month. @default 0.25 */
  readonly storedGigabyte: number
  /** One Redis node for an hour. @default 0.219 */
  readonly redisNodeHour: number
  /** Bytes that one Redis node has for records. @default 10.5e9 */
  readonly redisNodeBytes: number
}

/**
 * Published list prices of us-east-1 without free tiers, reservations and taxes, as known in November 2026: DynamoDB
 * Standard table class, and an ElastiCache `cache.r7g.large` (13.07 GiB, of which a quarter is reserved by default).
 * They were read in pages that quote the price list, not in the list itself: give the ones of your bill.
 */
export const LIST_PRICES: Prices = {
  millionWriteUnits: 0.625,
  provisionedUnitHour: 0.000_65,
  storedGigabyte: 0.25,
  redisNodeHour: 0.219,
  redisNodeBytes: 10.5e9,
}

/** The load, as {@link estimateCost} takes it. */
export interface Load {
  /** First requests, each with a key of its own, per second; the mean of a month. */
  readonly requestsPerSecond: number
  /** The same in the busiest second, which must not be throttled. @default requestsPerSecond */
  readonly peakRequestsPerSecond?: number
  /** How long a peak lasts, in ms: a Redis has to hold what it leaves behind. @default ttlMs */
  readonly peakMs?: number
  /** Duplicates per first request: 0.05 is one in twenty. */
  readonly duplicateRatio: number
  /** Bytes of a completed item, names and values: see `idempotency_dynamodb_item_bytes`. */
  readonly itemBytes: number
  /** Bytes of a pending item. @default 500 */
  readonly claimBytes?: number
  /** How long a completed response is replayed. */
  readonly ttlMs: number
  /** Renewals per first request: the handler's time by a third of `leaseMs`, rounded down. @default 0 */
  readonly leasesRenewed?: number
  /** Is the index `by_credential` on? @default false */
  readonly index?: boolean
  /** How long DynamoDB leaves an expired item in the table, in ms. @default 172_800_000 (48 hours) */
  readonly deletedLateMs?: number
  /** Bytes of a completed record in Redis: see docs/stores/redis.md. @default itemBytes * 1.15 */
  readonly redisBytesPerKey?: number
  /** Replicas of each Redis node. @default 1 */
  readonly redisReplicas?: number
  /** @default LIST_PRICES */
  readonly prices?: Partial<Prices>
}

/** Write units per first request, its duplicates included. */
export interface WriteUnits {
  /** The claim, and the index entry that it makes. */
  readonly claim: number
  readonly renewals: number
  readonly completion: number
  /** Failed conditional writes: each costs what the item that it found would cost to write. */
  readonly duplicates: number
  readonly total: number
}

/** One way to pay for the table, per month in US dollars. */
export interface TableCost {
  /** On demand: units in a month. Provisioned: units to have at every second (WCU). */
  readonly units: number
  readonly writes: number
  readonly storage: number
  readonly total: number
}

/** What {@link estimateCost} answers; amounts are US dollars per month. */
export interface CostEstimate {
  readonly writeUnits: WriteUnits
  /** Items and bytes in the table, those that are past their expiry and not yet deleted included. */
  readonly stored: { readonly items: number; readonly bytes: number }
  readonly onDemand: TableCost
  readonly provisioned: TableCost
  readonly redis: { readonly keys: number; readonly bytes: number; readonly nodes: number; readonly total: number }
}

const HOURS_PER_MONTH = 730
const SECONDS_PER_MONTH = HOURS_PER_MONTH * 3_600
/** A write unit pays for an item of up to this many bytes. */
const UNIT_BYTES = 1_024
const LARGEST_ITEM_BYTES = 400 * 1_024
/** What DynamoDB adds to each item and each index entry when it bills storage. */
const OVERHEAD_BYTES = 100

/**
 * The monthly cost of a load: a pure function, nothing is asked of AWS. Reads are left out (a claim needs none), as are
 * backups and data transfer, and what a Redis can carry out in a second: only its memory counts here.
 * @throws InvalidOptionError naming the member
 */
export function estimateCost(load: Load): CostEstimate {
  const known = resolve(load)
  const writeUnits = unitsPerRequest(known)
  const stored = storedItems(known)
  return {
    writeUnits,
    stored,
    onDemand: onDemandCost(known, writeUnits.total, stored.bytes),
    provisioned: provisionedCost(known, writeUnits.total, stored.bytes),
    redis: redisCost(known),
  }
}

type KnownLoad = Required<Omit<Load, 'prices'>> & { readonly prices: Prices }

function unitsPerRequest({ claimBytes, itemBytes, leasesRenewed, duplicateRatio, index }: KnownLoad): WriteUnits {
  const pending = unitsOf(claimBytes)
  const completion = unitsOf(itemBytes)
  // An index entry is made by the claim alone: what follows changes none of its attributes.
  const claim = index ? pending * 2 : pending
  const renewals = leasesRenewed * pending
  const duplicates = duplicateRatio * completion
  return { claim, renewals, completion, duplicates, total: claim + renewals + completion + duplicates }
}

function unitsOf(bytes: number): number {
  return Math.ceil(bytes / UNIT_BYTES)
}

function storedItems({ requestsPerSecond, ttlMs, deletedLateMs, itemBytes, claimBytes, index }: KnownLoad) {
  const items = (requestsPerSecond * (ttlMs + deletedLateMs)) / 1_000
  const entryBytes = index ? claimBytes + OVERHEAD_BYTES : 0
  return { items, bytes: items * (itemBytes + OVERHEAD_BYTES + entryBytes) }
}

function onDemandCost({ requestsPerSecond, prices }: KnownLoad, unitsEach: number, bytes: number): TableCost {
  const units = requestsPerSecond * SECONDS_PER_MONTH * unitsEach
  return tableCost(units, (units / 1e6) * prices.millionWriteUnits, bytes, prices)
}

function provisionedCost({ peakRequestsPerSecond, prices }: KnownLoad, unitsEach: number, bytes: number): TableCost {
  const units = wholeAbove(peakRequestsPerSecond * unitsEach)
  return tableCost(units, units * HOURS_PER_MONTH * prices.provisionedUnitHour, bytes, prices)
}

function tableCost(units: number, writes: number, bytes: number, prices: Prices): TableCost {
  const storage = (bytes / 1e9) * prices.storedGigabyte
  return { units, writes, storage, total: writes + storage }
}

function redisCost(load: KnownLoad): CostEstimate['redis'] {
  const { requestsPerSecond, peakRequestsPerSecond, ttlMs, prices } = load
  const peakMs = Math.min(load.peakMs, ttlMs)
  const keys = (peakRequestsPerSecond * peakMs + requestsPerSecond * (ttlMs - peakMs)) / 1_000
  const bytes = keys * load.redisBytesPerKey
  const primaries = Math.max(1, wholeAbove(bytes / prices.redisNodeBytes))
  const nodes = primaries * (1 + load.redisReplicas)
  return { keys, bytes, nodes, total: nodes * HOURS_PER_MONTH * prices.redisNodeHour }
}

/** `Math.ceil` that does not count the last binary digit of a product: 100 × 1.1 is 110, not 111. */
function wholeAbove(value: number): number {
  return Math.ceil(Number(value.toPrecision(12)))
}

interface Range {
  readonly least: number
  readonly most?: number
  readonly isWhole?: boolean
}

const AMOUNT: Range = { least: 0 }
const DURATION: Range = { least: 1, isWhole: true }
const ITEM_BYTES: Range = { least: 1, most: LARGEST_ITEM_BYTES, isWhole: true }

/** Members without a default come first: theirs is the name to be told when one is missing. */
const LOAD_RANGES: Readonly<Record<Exclude<keyof Load, 'prices' | 'index'>, Range>> = {
  requestsPerSecond: AMOUNT,
  duplicateRatio: AMOUNT,
  itemBytes: ITEM_BYTES,
  ttlMs: DURATION,
  peakRequestsPerSecond: AMOUNT,
  peakMs: DURATION,
  claimBytes: ITEM_BYTES,
  leasesRenewed: AMOUNT,
  deletedLateMs: { least: 0, isWhole: true },
  redisBytesPerKey: { least: 1 },
  redisReplicas: { least: 0, isWhole: true },
}

const PRICE_RANGES: Readonly<Record<keyof Prices, Range>> = {
  millionWriteUnits: AMOUNT,
  provisionedUnitHour: AMOUNT,
  storedGigabyte: AMOUNT,
  redisNodeHour: AMOUNT,
  redisNodeBytes: { least: 1 },
}

function resolve(load: Load): KnownLoad {
  const { prices, ...given } = load
  const known = {
    peakRequestsPerSecond: load.requestsPerSecond,
    peakMs: load.ttlMs,
    claimBytes: 500,
    leasesRenewed: 0,
    index: false,
    deletedLateMs: 172_800_000,
    redisBytesPerKey: load.itemBytes * 1.15,
    redisReplicas: 1,
    ...given,
  }
  const allPrices = { ...LIST_PRICES, ...prices }
  checkLoad(known)
  checkMembers(allPrices, PRICE_RANGES, 'prices.')
  return { ...known, prices: allPrices }
}

function checkLoad({ index, ...numbers }: Omit<KnownLoad, 'prices'>): void {
  if (typeof index !== 'boolean') throw refused('index', 'true or false', index)
  checkMembers(numbers, LOAD_RANGES, '')
  const { requestsPerSecond, peakRequestsPerSecond } = numbers
  if (peakRequestsPerSecond < requestsPerSecond) {
    throw refused('peakRequestsPerSecond', 'at least requestsPerSecond', peakRequestsPerSecond)
  }
}

function checkMembers(given: object, ranges: Readonly<Record<string, Range>>, prefix: string): void {
  for (const name of Object.keys(given)) {
    if (!Object.hasOwn(ranges, name)) throw new InvalidOptionError(`estimateCost: unknown member "${prefix}${name}"`)
  }
  const values = given as Readonly<Record<string, unknown>>
  for (const [name, range] of Object.entries(ranges)) checkNumber(prefix + name, values[name], range)
}

function checkNumber(name: string, value: unknown, { least, most = Number.MAX_VALUE, isWhole = false }: Range): void {
  const isRight = Number.isFinite(value) && (!isWhole || Number.isInteger(value))
  if (isRight && (value as number) >= least && (value as number) <= most) return
  const bound = most === Number.MAX_VALUE ? `at least ${least}` : `${least} to ${most}`
  throw refused(name, `a ${isWhole ? 'whole ' : ''}number of ${bound}`, value)
}

function refused(name: string, takes: string, value: unknown): Error {
  return new InvalidOptionError(`estimateCost: "${name}" takes ${takes}, got ${String(value)}`)
}
