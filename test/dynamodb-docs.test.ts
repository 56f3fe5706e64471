/** What docs/stores/dynamodb.md says of table, role, options and item is what the code does. */

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { after, before, describe, it } from 'node:test'
import type { DynamoDBClient } from '@aws-sdk/client-dynamodb'
import { DEFAULT_ATTRIBUTES } from '../src/stores/dynamodb/attributes.ts'
import type { DynamoDBStoreOptions } from '../src/stores/dynamodb/options.ts'
import { DynamoDBStore } from '../src/stores/dynamodb/store.ts'
import { createTable } from '../src/stores/dynamodb/table.ts'
import { definitionOf, resolveTable } from '../src/stores/dynamodb/table-options.ts'
import { clientOf } from './support/dynamodb/client.ts'
import { type DynamoDBEndpoint, startDynamoDB } from './support/dynamodb/server.ts'
import { type StandIn, startStandIn } from './support/dynamodb/stand-in.ts'

const page = readFileSync(join(import.meta.dirname, '../docs/stores/dynamodb.md'), 'utf8')

function blockOf(language: string): string {
  const [, block = ''] = new RegExp(`^\`\`\`${language}\\n(.*?)^\`\`\`$`, 'ms').exec(page) ?? []
  assert.notEqual(block, '', `the page has a block of ${language}`)
  return block
}

/** Without what only lays it out. */
const flat = (text: string) => text.replaceAll(/\s+/g, ' ')

describe('the role', () => {
  let server: DynamoDBEndpoint
  let standIn: StandIn
  let client: DynamoDBClient

  before(async () => {
    server = await startDynamoDB()
    standIn = await startStandIn(server.endpoint)
    client = clientOf(standIn.url)
  })
  after(async () => {
    client.destroy()
    await standIn.stop()
    await server.stop()
  })

  it('may do what the store does, and nothing else', async () => {
    const tableName = `keys-${randomUUID()}`
    await createTable(client, { tableName, index: true })
    standIn.reset()
    await useEverything(new DynamoDBStore({ client, tableName, credentialIndex: true }))
    const { Statement: statements } = JSON.parse(blockOf('json')) as { Statement: { Action: string | string[] }[] }
    const allowed = statements.flatMap(({ Action: action }) => action)
    const used = new Set(standIn.calls.map((operation) => `dynamodb:${operation}`))
    assert.deepEqual(allowed.toSorted(), [...used].sort())
  })
})

async function useEverything(store: DynamoDBStore): Promise<void> {
  const request = (key: string) => ({
    scopedKey: `idem#v1#acct_1042#POST:/payments#${key}`,
    fingerprint: 'f',
    token: randomUUID(),
    leaseMs: 30_000,
    ttlMs: 60_000,
    takeOverExpired: true,
  })
  const claimed = async (key: string) => {
    const result = await store.claim(request(key))
    assert.ok(result.outcome === 'claimed')
    return result.claim
  }
  await store.check()
  const first = await claimed('1')
  assert.ok(await store.renew(first, 30_000))
  assert.ok(await store.complete(first, { statusCode: 201, headers: {}, body: '{}', replayable: true }, 60_000))
  assert.equal((await store.claim(request('1'))).outcome, 'exists')
  assert.ok(await store.fail(await claimed('2'), 60_000))
  assert.ok(await store.release(await claimed('3')))
  assert.equal((await store.read(first.scopedKey))?.state, 'completed')
  assert.equal((await store.listByCredential('acct_1042')).keys.length, 2)
}

describe('the table', () => {
  const options = { tableName: 'idempotency-keys', index: true, deletionProtection: true }
  const { index: _, deletionProtection: __, ...common } = options
  const definition = definitionOf(resolveTable('test', { ...common, index: true }, {}), options)

  it('of CloudFormation is the one that createTable makes', () => {
    const template = flat(blockOf('yaml'))
    const [index] = definition.GlobalSecondaryIndexes ?? []
    const inline = (entries: object[] = []) =>
      entries
        .map(
          (entry) =>
            `- { ${Object.entries(entry)
              .map((pair) => pair.join(': '))
              .join(', ')} }`,
        )
        .join(' ')
    const expected = [
      `TableName: ${definition.TableName} BillingMode: ${definition.BillingMode} DeletionProtectionEnabled: true`,
      `KeySchema: ${inline(definition.KeySchema)} TimeToLive`,
      `AttributeDefinitions: ${inline(definition.AttributeDefinitions)} Global`,
      `- IndexName: ${index?.IndexName} KeySchema: ${inline(index?.KeySchema)} Projection:`,
      `Projection: { ProjectionType: ${index?.Projection?.ProjectionType} }`,
      `TimeToLiveSpecification: { AttributeName: ${DEFAULT_ATTRIBUTES.expiresAt}, Enabled: true }`,
    ]
    for (const each of expected) assert.ok(template.includes(each), `the template has ${each}`)
  })

  it('of Terraform is the one that createTable makes', () => {
    const resource = flat(blockOf('hcl'))
    const [index] = definition.GlobalSecondaryIndexes ?? []
    const [hash, range] = index?.KeySchema ?? []
    const attributes = definition.AttributeDefinitions?.map(
      ({ AttributeName: name, AttributeType: type }) => `attribute { name = "${name}" type = "${type}" }`,
    )
    const expected = [
      `name = "${definition.TableName}" billing_mode = "${definition.BillingMode}" deletion_protection_enabled = true`,
      `hash_key = "${definition.KeySchema?.[0]?.AttributeName}" attribute`,
      ...(attributes ?? []),
      `ttl { attribute_name = "${DEFAULT_ATTRIBUTES.expiresAt}" enabled = true }`,
      `global_secondary_index { name = "${index?.IndexName}" hash_key = "${hash?.AttributeName}" ` +
        `range_key = "${range?.AttributeName}" projection_type = "${index?.Projection?.ProjectionType}" }`,
    ]
    for (const each of expected) assert.ok(resource.includes(each), `the resource has ${each}`)
  })
})

describe('the page', () => {
  const firstCells = [...page.matchAll(/^\| `(\w+)`\s+\|/gm)].map(([, name]) => name)

  it('has every attribute of an item', () => {
    for (const name of Object.values(DEFAULT_ATTRIBUTES)) assert.ok(firstCells.includes(name), `attribute ${name}`)
  })

  it('has every option of the store but the clock, which is for tests', () => {
    assert.throws(
      () => new DynamoDBStore({ unknown: 1 } as unknown as DynamoDBStoreOptions),
      ({ message }: Error) => {
        const [, known = ''] = /known options: (.*)$/.exec(message) ?? []
        const options = known.split(', ').filter((name) => name !== 'now')
        assert.ok(options.includes('clockSkewMs'), message)
        for (const name of options) assert.ok(firstCells.includes(name), `option ${name}`)
        return true
      },
    )
  })
})
