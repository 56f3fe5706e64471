/** Making and checking the table, on a real server. What that server does not have is put into its replies. */

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, describe, it } from 'node:test'
import {
  CreateTableCommand,
  type CreateTableCommandInput,
  DescribeTableCommand,
  DescribeTimeToLiveCommand,
  type DynamoDBClient,
  UpdateTimeToLiveCommand,
} from '@aws-sdk/client-dynamodb'
import { checkTable, createTable } from '../src/stores/dynamodb/table.ts'
import type { NewTableOptions, TableCheckOptions } from '../src/stores/dynamodb/table-options.ts'
import { clientOf } from './support/dynamodb/client.ts'
import { type DynamoDBEndpoint, startDynamoDB } from './support/dynamodb/server.ts'
import { failure, type Reply, type StandIn, startStandIn } from './support/dynamodb/stand-in.ts'

let server: DynamoDBEndpoint
let standIn: StandIn
/** Straight to the server. */
let client: DynamoDBClient
/** To the server by way of the stand-in. */
let detour: DynamoDBClient

const newName = () => `keys-${randomUUID()}`

before(async () => {
  server = await startDynamoDB()
  standIn = await startStandIn(server.endpoint)
  client = clientOf(server.endpoint, { maxAttempts: 1 })
  detour = clientOf(standIn.url, { maxAttempts: 1 })
})

after(async () => {
  client.destroy()
  detour.destroy()
  await standIn.stop()
  await server.stop()
})

async function described(tableName: string) {
  const { Table: table } = await client.send(new DescribeTableCommand({ TableName: tableName }))
  const { TimeToLiveDescription: ttl } = await client.send(new DescribeTimeToLiveCommand({ TableName: tableName }))
  return { table, ttl }
}

/** A table as somebody else made it. */
async function foreignTable(changes: Partial<CreateTableCommandInput> = {}): Promise<string> {
  const tableName = newName()
  const command = new CreateTableCommand({
    TableName: tableName,
    AttributeDefinitions: [{ AttributeName: 'pk', AttributeType: 'S' }],
    KeySchema: [{ AttributeName: 'pk', KeyType: 'HASH' }],
    BillingMode: 'PAY_PER_REQUEST',
    ...changes,
  })
  await client.send(command)
  return tableName
}

async function enableTtl(tableName: string, attribute: string): Promise<void> {
  const TimeToLiveSpecification = { Enabled: true, AttributeName: attribute }
  await client.send(new UpdateTimeToLiveCommand({ TableName: tableName, TimeToLiveSpecification }))
}

describe('createTable', () => {
  it('makes a table on demand with its TTL on and no index', async () => {
    const tableName = newName()
    await createTable(client, { tableName })
    const { table, ttl } = await described(tableName)
    assert.equal(table?.TableStatus, 'ACTIVE')
    assert.deepEqual(table?.KeySchema, [{ AttributeName: 'pk', KeyType: 'HASH' }])
    assert.deepEqual(table?.AttributeDefinitions, [{ AttributeName: 'pk', AttributeType: 'S' }])
    assert.equal(table?.BillingModeSummary?.BillingMode, 'PAY_PER_REQUEST')
    assert.equal(table?.GlobalSecondaryIndexes, undefined)
    assert.equal(table?.DeletionProtectionEnabled, false)
    assert.deepEqual(ttl, { TimeToLiveStatus: 'ENABLED', AttributeName: 'expires_at' })
    assert.deepEqual(await checkTable(client, { tableName }), [])
  })

  it('makes the index, with keys only, when it is wanted', async () => {
    const tableName = newName()
    await createTable(client, { tableName, index: true })
    const { table } = await described(tableName)
    const [index] = table?.GlobalSecondaryIndexes ?? []
    assert.equal(index?.IndexName, 'by_credential')
    assert.deepEqual(index?.KeySchema, [
      { AttributeName: 'credential_id', KeyType: 'HASH' },
      { AttributeName: 'created_at', KeyType: 'RANGE' },
    ])
    assert.deepEqual(index?.Projection, { ProjectionType: 'KEYS_ONLY' })
    assert.deepEqual(await checkTable(client, { tableName, index: true }), [])
  })

  it('provisions table and index with the units that are given', async () => {
    const tableName = newName()
    await createTable(client, { tableName, index: true, capacity: { readUnits: 5, writeUnits: 7 } })
    const { table } = await described(tableName)
    for (const each of [table, table?.GlobalSecondaryIndexes?.[0]]) {
      const { ReadCapacityUnits: readUnits, WriteCapacityUnits: writeUnits } = each?.ProvisionedThroughput ?? {}
      assert.deepEqual([readUnits, writeUnits], [5, 7])
    }
  })

  it('protects the table from deletion when asked to', async () => {
    const tableName = newName()
    await createTable(client, { tableName, deletionProtection: true })
    assert.equal((await described(tableName)).table?.DeletionProtectionEnabled, true)
  })

  it('takes other names for its attributes', async () => {
    const tableName = newName()
    const attributes = { pk: 'id', expiresAt: 'ttl', credentialId: 'tenant', createdAt: 'since' }
    await createTable(client, { tableName, attributes, index: true })
    const { table, ttl } = await described(tableName)
    assert.deepEqual(table?.KeySchema, [{ AttributeName: 'id', KeyType: 'HASH' }])
    assert.equal(ttl?.AttributeName, 'ttl')
    assert.deepEqual(await checkTable(client, { tableName, attributes, index: true }), [])
    await assert.rejects(checkTable(client, { tableName }), /has the key id \(HASH S\); the store needs pk \(HASH S\)/)
  })

  it('changes nothing when it is called again', async () => {
    const tableName = newName()
    await createTable(client, { tableName, index: true })
    const first = await described(tableName)
    await createTable(client, { tableName, index: true, capacity: { readUnits: 1, writeUnits: 1 } })
    assert.deepEqual(await described(tableName), first)
  })

  it('may be called by several processes at once', async () => {
    const tableName = newName()
    await Promise.all(Array.from({ length: 8 }, () => createTable(client, { tableName, index: true })))
    assert.deepEqual(await checkTable(client, { tableName, index: true }), [])
  })

  it('leaves it to the faster of two to switch the TTL on', async () => {
    const tableName = newName()
    await createTable(client, { tableName })
    standIn.reset()
    standIn.change('DescribeTimeToLive', () => ({ TimeToLiveDescription: { TimeToLiveStatus: 'DISABLED' } }), same)
    standIn.change('UpdateTimeToLive', failure('ValidationException'))
    await createTable(detour, { tableName })
    const ttlCalls = standIn.calls.filter((operation) => operation.endsWith('TimeToLive'))
    assert.deepEqual(ttlCalls, ['DescribeTimeToLive', 'UpdateTimeToLive', 'DescribeTimeToLive'])
  })

  it('says so when the TTL cannot be switched on', async () => {
    const tableName = await foreignTable()
    standIn.reset()
    standIn.change('DescribeTimeToLive', () => ({ TimeToLiveDescription: { TimeToLiveStatus: 'DISABLED' } }))
    standIn.change('UpdateTimeToLive', failure('ValidationException'))
    await assert.rejects(createTable(detour, { tableName }), { name: 'ValidationException' })
  })

  it('finishes what a call that was cut short had begun: the TTL', async () => {
    const tableName = await foreignTable()
    await createTable(client, { tableName })
    assert.equal((await described(tableName)).ttl?.TimeToLiveStatus, 'ENABLED')
  })

  it('refuses a table of that name with other keys', async () => {
    const tableName = await foreignTable({
      AttributeDefinitions: [
        { AttributeName: 'pk', AttributeType: 'S' },
        { AttributeName: 'sk', AttributeType: 'N' },
      ],
      KeySchema: [
        { AttributeName: 'pk', KeyType: 'HASH' },
        { AttributeName: 'sk', KeyType: 'RANGE' },
      ],
    })
    const message = `DynamoDB table "${tableName}" has the key pk (HASH S), sk (RANGE N); the store needs pk (HASH S) alone`
    await assert.rejects(createTable(client, { tableName }), { message })
    assert.equal((await described(tableName)).ttl?.TimeToLiveStatus, 'DISABLED', 'and leaves it as it was')
    await assert.rejects(checkTable(client, { tableName }), { message })
  })

  it('refuses a table whose key is a number', async () => {
    const tableName = await foreignTable({ AttributeDefinitions: [{ AttributeName: 'pk', AttributeType: 'N' }] })
    await assert.rejects(createTable(client, { tableName }), /has the key pk \(HASH N\); the store needs pk \(HASH S\)/)
  })

  it('refuses a table without the index that is wanted', async () => {
    const tableName = newName()
    await createTable(client, { tableName })
    await assert.rejects(createTable(client, { tableName, index: true }), /has no index by_credential/)
  })

  it('refuses a table whose TTL looks at another attribute', async () => {
    const tableName = await foreignTable()
    await enableTtl(tableName, 'ttl')
    await assert.rejects(createTable(client, { tableName }), {
      message:
        `DynamoDB table "${tableName}" has its TTL on ttl, so it keeps every record for ever; disable it there and ` +
        'enable it on expires_at, or name the attribute ttl in the option attributes.expiresAt',
    })
  })

  it('waits until table and index take requests', async () => {
    const tableName = newName()
    standIn.reset()
    const unknown = failure('ResourceNotFoundException')
    standIn.change('DescribeTable', unknown, changedTable({ TableStatus: 'CREATING' }), changedIndex('CREATING'), same)
    await createTable(detour, { tableName, index: true })
    assert.equal(standIn.calls.filter((operation) => operation === 'DescribeTable').length, 4)
    assert.equal((await described(tableName)).ttl?.TimeToLiveStatus, 'ENABLED')
  })

  it('does not wait for an index that is not wanted', async () => {
    const tableName = newName()
    await createTable(client, { tableName, index: true })
    standIn.reset()
    standIn.change('DescribeTable', changedIndex('CREATING'))
    await createTable(detour, { tableName, timeoutMs: 5_000 })
  })

  it('takes a table and an index whose capacity is being changed for ready', async () => {
    const tableName = newName()
    await createTable(client, { tableName, index: true })
    standIn.reset()
    standIn.change('DescribeTable', (reply) =>
      changedTable({ TableStatus: 'UPDATING' })(changedIndex('UPDATING')(reply)),
    )
    await createTable(detour, { tableName, index: true, timeoutMs: 5_000 })
    assert.deepEqual(await checkTable(detour, { tableName, index: true }), [])
  })

  it('does not wait for ever', { timeout: 10_000 }, async () => {
    const tableName = newName()
    standIn.reset()
    standIn.change('DescribeTable', changedTable({ TableStatus: 'CREATING' }))
    await assert.rejects(createTable(detour, { tableName, timeoutMs: 300 }), {
      message: `DynamoDB table "${tableName}" is not ready within 300 ms`,
    })
  })

  it('does not wait for a server that never answers', { timeout: 10_000 }, async () => {
    const tableName = newName()
    standIn.reset()
    standIn.change('CreateTable', () => undefined)
    await assert.rejects(createTable(detour, { tableName, timeoutMs: 300 }), /is not ready within 300 ms/)
  })

  it('ends with the reason of the signal when that is aborted', { timeout: 10_000 }, async () => {
    const tableName = newName()
    const controller = new AbortController()
    standIn.reset()
    standIn.change('DescribeTable', (reply) => {
      controller.abort(new Error('we are leaving'))
      return changedTable({ TableStatus: 'CREATING' })(reply)
    })
    const options = { tableName, signal: controller.signal }
    await assert.rejects(createTable(detour, options), { message: 'we are leaving' })
    standIn.reset()
    await assert.rejects(createTable(detour, options), { message: 'we are leaving' })
    assert.deepEqual(standIn.calls, [], 'and nothing is sent when it was before')
  })

  it('says so when it is not allowed to', async () => {
    standIn.reset()
    standIn.change('CreateTable', failure('AccessDeniedException'))
    await assert.rejects(createTable(detour, { tableName: newName() }), { name: 'AccessDeniedException' })
  })
})

describe('checkTable', () => {
  it('refuses a table that is not there', async () => {
    const tableName = newName()
    await assert.rejects(checkTable(client, { tableName }), {
      message: `DynamoDB table "${tableName}" does not exist in this region; make it with createTable()`,
    })
  })

  it('refuses a table that takes no requests', async () => {
    const tableName = await foreignTable()
    standIn.reset()
    standIn.change('DescribeTable', changedTable({ TableStatus: 'DELETING' }))
    await assert.rejects(checkTable(detour, { tableName }), { message: /takes no requests: DELETING/ })
  })

  it('warns of a TTL that is off', async () => {
    const tableName = await foreignTable()
    assert.deepEqual(await checkTable(client, { tableName }), [
      `DynamoDB table "${tableName}" has its TTL off, so it keeps every record for ever; enable it on expires_at`,
    ])
  })

  it('warns of a TTL on another attribute', async () => {
    const tableName = await foreignTable()
    await enableTtl(tableName, 'ttl')
    const [warning, ...others] = await checkTable(client, { tableName })
    assert.match(warning ?? '', /has its TTL on ttl, so it keeps every record for ever; .* enable it on expires_at/)
    assert.deepEqual(others, [])
    assert.deepEqual(await checkTable(client, { tableName, attributes: { expiresAt: 'ttl' } }), [])
  })

  it('takes a TTL that is being switched on for one that is on', async () => {
    const tableName = await foreignTable()
    standIn.reset()
    const TimeToLiveDescription = { TimeToLiveStatus: 'ENABLING', AttributeName: 'expires_at' }
    standIn.change('DescribeTimeToLive', () => ({ TimeToLiveDescription }))
    assert.deepEqual(await checkTable(detour, { tableName }), [])
  })

  it('warns when the index is wanted and not there, and only then', async () => {
    const tableName = newName()
    await createTable(client, { tableName })
    assert.deepEqual(await checkTable(client, { tableName }), [])
    assert.deepEqual(await checkTable(client, { tableName, index: true }), [
      `DynamoDB table "${tableName}" has no index by_credential, so listByCredential fails; make one with the keys ` +
        'credential_id (HASH S), created_at (RANGE N), or leave out the option for it',
    ])
  })

  it('warns of an index on other attributes', async () => {
    const tableName = newName()
    await createTable(client, { tableName, index: true })
    const attributes = { createdAt: 'made_at' }
    const [warning] = await checkTable(client, { tableName, attributes, index: true })
    assert.match(warning ?? '', /has an index by_credential on credential_id \(HASH S\), created_at \(RANGE N\)/)
  })

  it('warns of an index that is still being built', async () => {
    const tableName = newName()
    await createTable(client, { tableName, index: true })
    standIn.reset()
    standIn.change('DescribeTable', changedIndex('CREATING'))
    const [warning] = await checkTable(detour, { tableName, index: true })
    assert.match(warning ?? '', /the index by_credential of DynamoDB table ".*" is not ready/)
  })

  describe('on a global table', () => {
    const replicas = { Replicas: [{ RegionName: 'eu-west-1' }, { RegionName: 'us-west-2' }] }
    let tableName: string
    before(async () => {
      tableName = newName()
      await createTable(client, { tableName })
    })

    it('warns that two regions may both claim a key', async () => {
      standIn.reset()
      standIn.change('DescribeTable', changedTable(replicas))
      const [warning, ...others] = await checkTable(detour, { tableName })
      assert.match(
        warning ?? '',
        /is a global table \(replicas: eu-west-1, us-west-2\): two regions can both claim a key/,
      )
      assert.deepEqual(others, [])
      assert.deepEqual(await checkTable(detour, { tableName, hasHomeRegions: true }), [])
    })

    it('warns with strong consistency of the TTL alone, which such tables do not have', async () => {
      standIn.reset()
      standIn.change('DescribeTable', changedTable({ ...replicas, MultiRegionConsistency: 'STRONG' }))
      standIn.change('DescribeTimeToLive', failure('ValidationException'))
      assert.deepEqual(await checkTable(detour, { tableName }), [
        `DynamoDB table "${tableName}" has multi-Region strong consistency, so no TTL: delete expired items by a job of yours`,
      ])
    })
  })

  it('warns of what it may not read, and checks the rest', async () => {
    const tableName = await foreignTable()
    standIn.reset()
    standIn.change('DescribeTimeToLive', failure('AccessDeniedException'))
    assert.deepEqual(await checkTable(detour, { tableName, index: true }), [
      `DynamoDB table "${tableName}" has no index by_credential, so listByCredential fails; make one with the keys ` +
        'credential_id (HASH S), created_at (RANGE N), or leave out the option for it',
      `DynamoDB table "${tableName}" is not checked: allow this role dynamodb:DescribeTimeToLive`,
    ])
    standIn.change('DescribeTable', failure('AccessDeniedException'))
    assert.deepEqual(await checkTable(detour, { tableName }), [
      `DynamoDB table "${tableName}" is not checked: allow this role dynamodb:DescribeTable`,
    ])
  })

  it('refuses when DynamoDB fails or does not answer', { timeout: 10_000 }, async () => {
    const tableName = await foreignTable()
    standIn.reset()
    standIn.change('DescribeTable', failure('InternalServerError'))
    await assert.rejects(checkTable(detour, { tableName }), { name: 'InternalServerError' })
    standIn.change('DescribeTable', () => undefined)
    await assert.rejects(checkTable(detour, { tableName, timeoutMs: 200 }), /could not be looked at within 200 ms/)
  })
})

describe('a wrong option is refused by its name, and nothing is sent', () => {
  const wrongOfBoth: [options: object, message: RegExp][] = [
    [{ tableName: '' }, /option "tableName" takes the name of a table, got ''/],
    [{ tableName: 7 }, /option "tableName" takes the name of a table, got 7/],
    [{ timeoutMs: 0 }, /option "timeoutMs" takes a whole number of at least 1, got 0/],
    [{ index: 'yes' }, /option "index" takes true or false, got 'yes'/],
    [{ attributes: { pk: '' } }, /option "attributes.pk" takes the name of an attribute, got ''/],
    [{ attributes: { expiresAt: 3 } }, /option "attributes.expiresAt" takes the name of an attribute, got 3/],
    [{ tabelName: 'x' }, /unknown option "tabelName"; known options: tableName, attributes/],
  ]
  const wrongOfCreate: [options: object, message: RegExp][] = [
    [{ capacity: 'provisioned' }, /option "capacity" takes 'on-demand' or { readUnits, writeUnits }/],
    [{ capacity: { readUnits: 1 } }, /option "capacity" takes .* got { readUnits: 1 }/],
    [{ capacity: { readUnits: 0, writeUnits: 1 } }, /option "capacity" takes/],
    [{ deletionProtection: 'on' }, /option "deletionProtection" takes true or false, got 'on'/],
    [{ hasHomeRegions: true }, /unknown option "hasHomeRegions"/],
  ]
  for (const [options, message] of [...wrongOfBoth, ...wrongOfCreate]) {
    it(`createTable: ${message.source}`, async () => {
      standIn.reset()
      const call = createTable(detour, { tableName: 'keys', ...options } as NewTableOptions)
      await assert.rejects(call, { code: 'FST_IDEMPOTENCY_INVALID_OPTION', message })
      assert.deepEqual(standIn.calls, [])
    })
  }
  for (const [options, message] of wrongOfBoth) {
    it(`checkTable: ${message.source}`, async () => {
      const call = checkTable(detour, { tableName: 'keys', ...options } as TableCheckOptions)
      await assert.rejects(call, { code: 'FST_IDEMPOTENCY_INVALID_OPTION', message })
    })
  }
})

const same = (reply: Reply) => reply

function changedTable(changes: object) {
  return (reply: Reply): Reply => ({ Table: { ...(reply['Table'] as object), ...changes } })
}

function changedIndex(status: string) {
  return (reply: Reply): Reply => {
    const { GlobalSecondaryIndexes: indexes } = reply['Table'] as { GlobalSecondaryIndexes: object[] }
    return changedTable({ GlobalSecondaryIndexes: indexes.map((index) => ({ ...index, IndexStatus: status })) })(reply)
  }
}
