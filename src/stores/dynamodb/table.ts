/** The table: made as the store needs it, and checked before the first request. */

import { setTimeout as sleep } from 'node:timers/promises'
import {
  CreateTableCommand,
  type CreateTableCommandInput,
  type CreateTableCommandOutput,
  DescribeTableCommand,
  type DescribeTableCommandOutput,
  DescribeTimeToLiveCommand,
  type DescribeTimeToLiveCommandOutput,
  type KeySchemaElement,
  type TableDescription,
  type TimeToLiveDescription,
  UpdateTimeToLiveCommand,
  type UpdateTimeToLiveCommandOutput,
} from '@aws-sdk/client-dynamodb'
import {
  CHECK_RULES,
  CREATE_RULES,
  CREDENTIAL_INDEX,
  definitionOf,
  type NewTableOptions,
  resolveTable,
  type TableCheckOptions,
  type Wanted,
} from './table-options.ts'

/** The part of the SDK's `DynamoDBClient` that is used, to make and look at a table. */
export interface DynamoDBTableClient {
  send(command: CreateTableCommand, options: { abortSignal: AbortSignal }): Promise<CreateTableCommandOutput>
  send(command: DescribeTableCommand, options: { abortSignal: AbortSignal }): Promise<DescribeTableCommandOutput>
  send(command: UpdateTimeToLiveCommand, options: { abortSignal: AbortSignal }): Promise<UpdateTimeToLiveCommandOutput>
  send(
    command: DescribeTimeToLiveCommand,
    options: { abortSignal: AbortSignal },
  ): Promise<DescribeTimeToLiveCommandOutput>
}

const POLL_EVERY_MS = 200

/**
 * Makes the table with its TTL and resolves when it takes requests. A table that is there already is left as it is,
 * but for a TTL that is off: that is switched on, so that a call that was cut short can be made again.
 * @throws InvalidOptionError naming the option
 * @throws Error when the table that is there has another key, another TTL attribute or no index, or when time is up
 */
export async function createTable(client: DynamoDBTableClient, options: NewTableOptions): Promise<void> {
  const wanted = resolveTable('createTable', options, CREATE_RULES)
  const definition = definitionOf(wanted, options)
  await bounded(wanted, 'is not ready', async (signal) => {
    await createIfMissing(client, definition, signal)
    const table = await whenActive(client, wanted, signal)
    assertKeys(table, wanted)
    const [problem] = checkIndex(table, wanted)
    if (problem) throw new Error(problem)
    await enableTtl(client, wanted, signal)
  })
}

/**
 * Sentences about a table that works but not as it should, each with what to do; for the store's start-up check.
 * What the caller's role may not read is one of them.
 * @throws InvalidOptionError naming the option
 * @throws Error when the store cannot work on this table: it is missing, not ready, or has another key
 */
export async function checkTable(client: DynamoDBTableClient, options: TableCheckOptions): Promise<readonly string[]> {
  const wanted = resolveTable('checkTable', options, CHECK_RULES)
  return bounded(wanted, 'could not be looked at', async (signal) => {
    const table = await unlessDenied(describe(client, wanted.tableName, signal))
    if (table === 'denied') return [notAllowed(wanted, 'DescribeTable')]
    assertReady(table, wanted)
    assertKeys(table, wanted)
    const replicas = options.hasHomeRegions ? [] : checkReplicas(table, wanted)
    return [...replicas, ...checkIndex(table, wanted), ...(await checkTtl(client, table, wanted, signal))]
  })
}

async function createIfMissing(
  client: DynamoDBTableClient,
  definition: CreateTableCommandInput,
  abortSignal: AbortSignal,
) {
  try {
    await client.send(new CreateTableCommand(definition), { abortSignal })
  } catch (error) {
    if (!isNamed(error, 'ResourceInUseException')) throw error
  }
}

async function whenActive(client: DynamoDBTableClient, wanted: Wanted, signal: AbortSignal): Promise<TableDescription> {
  for (;;) {
    const table = await describe(client, wanted.tableName, signal)
    // A table that was made a moment ago may be unknown still.
    if (table && isReady(table, wanted)) return table
    await sleep(POLL_EVERY_MS)
  }
}

function isReady({ TableStatus: status, GlobalSecondaryIndexes: indexes = [] }: TableDescription, wanted: Wanted) {
  const index = wanted.index ? indexes.find(({ IndexName }) => IndexName === CREDENTIAL_INDEX) : undefined
  return isTaking(status) && (!index || isTaking(index.IndexStatus))
}

/** Does a table or an index in this state take requests? While its capacity is changed it does. */
function isTaking(status: string | undefined): boolean {
  return status === 'ACTIVE' || status === 'UPDATING'
}

async function describe(client: DynamoDBTableClient, tableName: string, abortSignal: AbortSignal) {
  try {
    const command = new DescribeTableCommand({ TableName: tableName })
    const { Table: table } = await client.send(command, { abortSignal })
    return table
  } catch (error) {
    if (isNamed(error, 'ResourceNotFoundException')) return undefined
    throw error
  }
}

function assertReady(table: TableDescription | undefined, wanted: Wanted): asserts table is TableDescription {
  if (!table) throw new Error(`${nameOf(wanted)} does not exist in this region; make it with createTable()`)
  const { TableStatus: status } = table
  if (!isTaking(status)) throw new Error(`${nameOf(wanted)} takes no requests: ${status}`)
}

function assertKeys(table: TableDescription, wanted: Wanted): void {
  const found = keysOf(table, table.KeySchema)
  const needed = `${wanted.attributes.pk} (HASH S)`
  if (found !== needed) throw new Error(`${nameOf(wanted)} has the key ${found}; the store needs ${needed} alone`)
}

/** As `pk (HASH S), sk (RANGE N)`. */
function keysOf({ AttributeDefinitions: types = [] }: TableDescription, keys: KeySchemaElement[] = []): string {
  const typeOf = (name?: string) => types.find(({ AttributeName }) => AttributeName === name)?.AttributeType
  return keys.map(({ AttributeName: name, KeyType: kind }) => `${name} (${kind} ${typeOf(name)})`).join(', ')
}

function checkIndex(table: TableDescription, wanted: Wanted): string[] {
  if (!wanted.index) return []
  const { credentialId, createdAt } = wanted.attributes
  const needed = `${credentialId} (HASH S), ${createdAt} (RANGE N)`
  const index = table.GlobalSecondaryIndexes?.find(({ IndexName }) => IndexName === CREDENTIAL_INDEX)
  const found = index && keysOf(table, index.KeySchema)
  if (found !== needed) {
    return [
      `${nameOf(wanted)} ${found ? `has an index ${CREDENTIAL_INDEX} on ${found}` : `has no index ${CREDENTIAL_INDEX}`}, ` +
        `so listByCredential fails; make one with the keys ${needed}, or leave out the option for it`,
    ]
  }
  if (isTaking(index?.IndexStatus)) return []
  return [`the index ${CREDENTIAL_INDEX} of ${nameOf(wanted)} is not ready: until then listByCredential fails`]
}

function checkReplicas({ Replicas: replicas = [], MultiRegionConsistency: mode }: TableDescription, wanted: Wanted) {
  if (replicas.length === 0 || mode === 'STRONG') return []
  const regions = replicas.map(({ RegionName: region }) => region).join(', ')
  return [
    `${nameOf(wanted)} is a global table (replicas: ${regions}): two regions can both claim a key before they hear of ` +
      'each other, and both requests run; give the store a home region for each key (option regions), or use a table ' +
      'with multi-Region strong consistency, or send all requests to one region',
  ]
}

async function checkTtl(client: DynamoDBTableClient, table: TableDescription, wanted: Wanted, signal: AbortSignal) {
  // Such tables cannot have a TTL at all.
  if (table.MultiRegionConsistency === 'STRONG') {
    return [`${nameOf(wanted)} has multi-Region strong consistency, so no TTL: delete expired items by a job of yours`]
  }
  const ttl = await unlessDenied(describeTtl(client, wanted, signal))
  if (ttl === 'denied') return [notAllowed(wanted, 'DescribeTimeToLive')]
  const { expiresAt } = wanted.attributes
  if (!isOn(ttl)) {
    return [`${nameOf(wanted)} has its TTL off, so it keeps every record for ever; enable it on ${expiresAt}`]
  }
  if (ttl.AttributeName === expiresAt) return []
  return [`${nameOf(wanted)} ${otherAttribute(ttl, wanted)}`]
}

async function enableTtl(client: DynamoDBTableClient, wanted: Wanted, abortSignal: AbortSignal): Promise<void> {
  if (await hasTtl(client, wanted, abortSignal)) return
  const TimeToLiveSpecification = { Enabled: true, AttributeName: wanted.attributes.expiresAt }
  const command = new UpdateTimeToLiveCommand({ TableName: wanted.tableName, TimeToLiveSpecification })
  try {
    await client.send(command, { abortSignal })
  } catch (error) {
    // Another process that makes the table too may have been first, and DynamoDB enables a TTL only once.
    if (!(await hasTtl(client, wanted, abortSignal))) throw error
  }
}

async function hasTtl(client: DynamoDBTableClient, wanted: Wanted, signal: AbortSignal): Promise<boolean> {
  const ttl = await describeTtl(client, wanted, signal)
  if (!isOn(ttl)) return false
  if (ttl.AttributeName === wanted.attributes.expiresAt) return true
  throw new Error(`${nameOf(wanted)} ${otherAttribute(ttl, wanted)}`)
}

async function describeTtl(client: DynamoDBTableClient, { tableName }: Wanted, abortSignal: AbortSignal) {
  const command = new DescribeTimeToLiveCommand({ TableName: tableName })
  const { TimeToLiveDescription: ttl = {} } = await client.send(command, { abortSignal })
  return ttl
}

function isOn({ TimeToLiveStatus: status }: TimeToLiveDescription): boolean {
  return status === 'ENABLED' || status === 'ENABLING'
}

function otherAttribute({ AttributeName: found }: TimeToLiveDescription, { attributes }: Wanted): string {
  return (
    `has its TTL on ${found}, so it keeps every record for ever; disable it there and enable it on ` +
    `${attributes.expiresAt}, or name the attribute ${found} in the option attributes.expiresAt`
  )
}

async function unlessDenied<Value>(reply: Promise<Value>): Promise<Value | 'denied'> {
  try {
    return await reply
  } catch (error) {
    if (isNamed(error, 'AccessDeniedException')) return 'denied'
    throw error
  }
}

function notAllowed(wanted: Wanted, action: string): string {
  return `${nameOf(wanted)} is not checked: allow this role dynamodb:${action}`
}

function nameOf({ tableName }: Wanted): string {
  return `DynamoDB table "${tableName}"`
}

function isNamed(error: unknown, name: string): boolean {
  return error instanceof Error && error.name === name
}

/** Ends what outlives `timeoutMs`, or the caller's signal: also a call that is never answered. */
async function bounded<Value>(
  wanted: Wanted,
  complaint: string,
  perform: (signal: AbortSignal) => Promise<Value>,
): Promise<Value> {
  const { signal, timeoutMs } = wanted
  signal?.throwIfAborted()
  const controller = new AbortController()
  const abort = () => controller.abort()
  const timer = setTimeout(abort, timeoutMs)
  signal?.addEventListener('abort', abort, { once: true })
  try {
    return await perform(controller.signal)
  } catch (error) {
    signal?.throwIfAborted()
    if (!controller.signal.aborted) throw error
    throw new Error(`${nameOf(wanted)} ${complaint} within ${timeoutMs} ms`, { cause: error })
  } finally {
    clearTimeout(timer)
    signal?.removeEventListener('abort', abort)
  }
}
