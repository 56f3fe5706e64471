/** The laws of a store on a real DynamoDB-compatible server, its options, its table, and the plugin on it. */

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, it } from 'node:test'
import type { DynamoDBClient } from '@aws-sdk/client-dynamodb'
import { createTable, DynamoDBStore } from '../src/stores/dynamodb/index.ts'
import { storeConformance } from '../src/testing/store-conformance.ts'
import { createApp, logCollector, post } from './support/app.ts'
import { claimed, testBed } from './support/dynamodb/bed.ts'
import { newTable } from './support/dynamodb/server.ts'
import { request } from './support/requests.ts'

const bed = testBed()

describe('the laws, with the clock moved and trips counted', () => {
  let movedMs = 0
  let trips = 0
  const counted = {
    send: (command: never, options: object) => {
      trips++
      return bed.client.send(command, options)
    },
  } as unknown as DynamoDBClient
  const now = () => Date.now() + movedMs
  storeConformance(() => bed.store({ client: counted, now, timeoutMs: 10_000 }), {
    advance: (ms) => {
      movedMs += ms
    },
    clockMarginMs: 1_000,
    roundTrips: () => trips,
    writeUnknownVersion: async (scopedKey) => {
      await bed.put({ pk: { S: scopedKey }, format: { N: '2' }, state: { S: 'whatever' } })
    },
  })
})

describe('the laws, in real time, in a table with names of its own, with the credential index', () => {
  const attributes = {
    pk: 'id',
    state: 'status',
    fingerprint: 'request-digest',
    claimToken: 'token',
    fence: 'value',
    previousExpiresAt: 'prev.ttl',
    leaseExpiresAt: 'lease',
    expiresAt: 'ttl',
    expiresAtMs: 'ttl ms',
    createdAt: 'time',
    version: 'v',
    credentialId: 'tenant',
    response: 'data',
    responseEncoding: 'encoding',
    format: 'schema',
  }
  const options = { attributes, credentialIndex: true, compress: false, clockSkewMs: 0, timeoutMs: 10_000 }
  let table: Promise<string> | undefined
  storeConformance(async () => {
    table ??= newTable(bed.client, 'id')
    return bed.store({ tableName: await table, ...options })
  })
})

describe('wrong options', () => {
  const wrong: Readonly<Record<string, [options: object, message: RegExp]>> = {
    'no object': ['table' as unknown as object, /takes an object of options, got string/],
    'no client': [{ client: undefined }, /option "client" is missing; it takes a DynamoDBClient/],
    'another client': [{ client: {} }, /option "client" takes a DynamoDBClient of @aws-sdk\/client-dynamodb 3/],
    'no table': [{ tableName: undefined }, /option "tableName" is missing; it takes the name or ARN/],
    'a table name of two letters': [
      { tableName: 'ab' },
      /option "tableName" takes the name or ARN of a table, got 'ab'/,
    ],
    'a typo': [{ tablename: 'abc' }, /unknown option "tablename"; known options: client, regions, tableName/],
    'a negative margin': [{ clockSkewMs: -1 }, /option "clockSkewMs" takes a whole number of milliseconds from 0/],
    'half a millisecond': [{ timeoutMs: 0.5 }, /option "timeoutMs" takes a whole number of milliseconds from 1/],
    'more than a timer takes': [{ timeoutMs: 2 ** 31 }, /option "timeoutMs" takes .* to 2147483647/],
    'a word for yes': [{ compress: 'yes' }, /option "compress" takes true or false, got 'yes'/],
    'an index by name': [{ credentialIndex: 'by_credential' }, /option "credentialIndex" takes true or false/],
    'a clock that stands': [{ now: 5 }, /option "now" takes a function, got 5/],
    'attributes that are none': [{ attributes: 'pk' }, /option "attributes" takes an object/],
    'an unknown attribute': [{ attributes: { claim_token: 't' } }, /attributes: unknown option "claim_token"; known/],
    'an attribute without a name': [
      { attributes: { pk: '' } },
      /attributes: option "pk" takes a string that is not empty/,
    ],
    'one name for two': [{ attributes: { pk: 'state' } }, /option "attributes" gives the name "state" to two/],
  }
  for (const [what, [options, message]] of Object.entries(wrong)) {
    it(`${what}: an error that names the option`, () => {
      const given = typeof options === 'object' ? { client: bed.client, tableName: 'table', ...options } : options
      assert.throws(() => new DynamoDBStore(given as never), { code: 'FST_IDEMPOTENCY_INVALID_OPTION', message })
    })
  }

  it('a name that is undefined counts as absent', () => {
    assert.ok(bed.store({ attributes: { pk: undefined } as never, clockSkewMs: undefined } as never))
  })
})

describe('the table', () => {
  it('is checked at the start: one without a TTL is warned of, with the name of the attribute', async () => {
    const warnings = await bed.store({ attributes: { expiresAt: 'ends' } }).check()
    assert.match(warnings.join(), /TTL.*ends|ends.*TTL/s)
  })

  it('as createTable makes it gives nothing to warn of, and lists the keys of one credential', async () => {
    const table = `made-${randomUUID()}`
    await createTable(bed.client, { tableName: table, index: true })
    const store = bed.store({ tableName: table, credentialIndex: true })
    assert.deepEqual(await store.check(), [])
    const keys = ['acme', 'acme', 'other'].map((credential) => `idem#v1#${credential}#POST:/pay#${randomUUID()}`)
    for (const key of keys) await claimed(store, request(key))
    const { keys: listed } = await store.listByCredential('acme')
    assert.deepEqual(listed.map(({ scopedKey }) => scopedKey).sort(), keys.slice(0, 2).sort())
  })

  it('without the index is not asked for one credential', async () => {
    const refusal = { code: 'FST_IDEMPOTENCY_INVALID_OPTION', message: /needs option "credentialIndex"/ }
    await assert.rejects(bed.store().listByCredential('acme'), refusal)
  })
})

describe('through the plugin', () => {
  it('pays once, replays, and writes neither key nor token nor body into the log', async (t) => {
    const { lines, logger } = logCollector('trace')
    const app = await createApp(t, { store: bed.store() }, { logger })
    let runs = 0
    app.post('/pay', async () => ({ run: ++runs, secret: 'body-in-the-log' }))
    const key = `key-in-the-log-${randomUUID()}`
    assert.equal((await post(app, '/pay', key)).json().run, 1)
    const replay = await post(app, '/pay', key)
    assert.equal(replay.headers['idempotent-replayed'], 'true')
    const item = await bed.item(`idem#v1#anonymous#POST:/pay#${key}`)
    const text = JSON.stringify(lines)
    for (const secret of [key, item?.['claim_token']?.S ?? '', 'body-in-the-log']) {
      assert.ok(secret !== '' && !text.includes(secret), `the log has ${secret}`)
    }
  })

  it('with a table that does not exist the app does not start, and says so', async (t) => {
    const app = await createApp(t, { store: bed.store({ tableName: 'no-such-table' }) })
    await assert.rejects(app.ready() as unknown as Promise<void>, /no-such-table.*does not exist/s)
  })
})
