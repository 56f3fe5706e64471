/** One tenant's keys, page by page, on a real server. */

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, describe, it } from 'node:test'
import { type DynamoDBClient, PutItemCommand } from '@aws-sdk/client-dynamodb'
import { DEFAULT_ATTRIBUTES } from '../src/stores/dynamodb/attributes.ts'
import { listByCredential } from '../src/stores/dynamodb/list.ts'
import { createTable } from '../src/stores/dynamodb/table.ts'
import { clientOf } from './support/dynamodb/client.ts'
import { type DynamoDBEndpoint, newTable, startDynamoDB } from './support/dynamodb/server.ts'
import { startStandIn } from './support/dynamodb/stand-in.ts'
import { until } from './support/stores.ts'

let server: DynamoDBEndpoint
let client: DynamoDBClient

before(async () => {
  server = await startDynamoDB()
  client = clientOf(server.endpoint, { maxAttempts: 1 })
})

after(async () => {
  client.destroy()
  await server.stop()
})

async function tableWithIndex(): Promise<string> {
  const tableName = `keys-${randomUUID()}`
  await createTable(client, { tableName, index: true })
  return tableName
}

describe('listByCredential', () => {
  let tableName: string
  const token = (fields: unknown) => Buffer.from(JSON.stringify(fields)).toString('base64url')
  const list = (credential: string, page?: Parameters<typeof listByCredential>[4]) =>
    listByCredential(client, tableName, DEFAULT_ATTRIBUTES, credential, page)

  before(async () => {
    tableName = await tableWithIndex()
    for (let i = 1; i <= 7; i++) await write(`alice-${i}`, 'alice', 1_000 + i)
    await write('bob-1', 'bob', 1_004)
    await write('without', undefined, 1_005)
  })

  async function write(pk: string, credential: string | undefined, createdAt: number): Promise<void> {
    const common = { pk: { S: pk }, created_at: { N: String(createdAt) }, state: { S: 'completed' } }
    const Item = credential === undefined ? common : { ...common, credential_id: { S: credential } }
    await client.send(new PutItemCommand({ TableName: tableName, Item }))
  }

  it('has the keys of one credential and no other, newest first', async () => {
    const { keys, next } = await list('alice')
    const expected = [7, 6, 5, 4, 3, 2, 1].map((i) => ({ scopedKey: `alice-${i}`, createdAt: 1_000 + i }))
    assert.deepEqual(keys, expected)
    assert.equal(next, undefined)
    assert.deepEqual((await list('bob')).keys, [{ scopedKey: 'bob-1', createdAt: 1_004 }])
    assert.deepEqual(await list('nobody'), { keys: [], next: undefined })
  })

  it('pages through all of them, each once', async () => {
    const pages: string[][] = []
    let next: string | undefined
    do {
      const page = await list('alice', { limit: 3, token: next })
      pages.push(page.keys.map(({ scopedKey }) => scopedKey))
      next = page.next
    } while (next !== undefined)
    assert.deepEqual(pages, [['alice-7', 'alice-6', 'alice-5'], ['alice-4', 'alice-3', 'alice-2'], ['alice-1']])
  })

  it('skips and repeats nothing when keys come in between two pages', async () => {
    await write('carol-1', 'carol', 10)
    await write('carol-2', 'carol', 20)
    const first = await list('carol', { limit: 1 })
    await write('carol-3', 'carol', 30)
    const second = await list('carol', { limit: 1, token: first.next })
    assert.deepEqual(
      [...first.keys, ...second.keys].map(({ createdAt }) => createdAt),
      [20, 10],
    )
  })

  it('gives tokens that are safe in a URL and do not show the credential', async () => {
    const { next = '' } = await list('alice', { limit: 1 })
    assert.match(next, /^[\w-]+$/)
    await write('key-1', 'secret credential', 1)
    await write('key-2', 'secret credential', 2)
    const other = await list('secret credential', { limit: 1 })
    assert.doesNotMatch(Buffer.from(other.next ?? '', 'base64url').toString(), /secret/)
  })

  it('refuses a token of another credential or table', async () => {
    const { next = '' } = await list('alice', { limit: 1 })
    const refusal = {
      code: 'FST_IDEMPOTENCY_INVALID_OPTION',
      message: 'fastify-idempotency: listByCredential: "token" is one of another table, credential or region',
    }
    await assert.rejects(list('bob', { token: next }), refusal)
    const other = await tableWithIndex()
    await assert.rejects(listByCredential(client, other, DEFAULT_ATTRIBUTES, 'alice', { token: next }), refusal)
  })

  it('never leaves the credential, whatever a forged token says', async () => {
    const { next = '' } = await list('alice', { limit: 1 })
    const [version, listing] = JSON.parse(Buffer.from(next, 'base64url').toString())
    const { keys } = await list('alice', { token: token([version, listing, 'bob-1', 1_004]) })
    assert.ok(keys.length > 0)
    for (const { scopedKey } of keys) assert.match(scopedKey, /^alice-/)
  })

  it('refuses what is not a token at all', async () => {
    const { next = '' } = await list('alice', { limit: 1 })
    const [version, listing, scopedKey, createdAt] = JSON.parse(Buffer.from(next, 'base64url').toString())
    const garbage: unknown[] = [
      '',
      'garbage',
      next.slice(0, -4),
      token(null),
      token('text'),
      token({ length: 4 }),
      token([]),
      token([version + 1, listing, scopedKey, createdAt]),
      token([version, listing, 7, createdAt]),
      token([version, listing, scopedKey, 'soon']),
      token([version, listing, scopedKey, 1.5]),
      7,
    ]
    for (const each of garbage) {
      await assert.rejects(
        list('alice', { token: each as string }),
        { message: 'fastify-idempotency: listByCredential: "token" is not one that listByCredential gave' },
        `token ${String(each)}`,
      )
    }
  })

  it('bounds its pages at 1 to 100 keys, 25 when nothing is said', async () => {
    for (const limit of [0, 101, 2.5, Number.NaN, '5' as unknown as number]) {
      const message = `fastify-idempotency: listByCredential: "limit" takes a whole number of 1 to 100, got ${limit}`
      await assert.rejects(list('alice', { limit }), { message })
    }
    for (let i = 1; i <= 101; i++) await write(`dave-${i}`, 'dave', i)
    assert.equal((await list('dave')).keys.length, 25)
    assert.equal((await list('dave', { limit: 100 })).keys.length, 100)
  })

  it('refuses a credential that is none', async () => {
    for (const credential of ['', undefined as unknown as string]) {
      const message = /the credential is a string that is not empty/
      await assert.rejects(list(credential), { code: 'FST_IDEMPOTENCY_INVALID_OPTION', message })
    }
  })

  it('ends when its signal is aborted', { timeout: 10_000 }, async () => {
    const standIn = await startStandIn(server.endpoint)
    const detour = clientOf(standIn.url)
    after(async () => {
      detour.destroy()
      await standIn.stop()
    })
    standIn.change('Query', () => undefined)
    const controller = new AbortController()
    const call = listByCredential(detour, tableName, DEFAULT_ATTRIBUTES, 'alice', { signal: controller.signal })
    await until('the query to arrive', () => standIn.calls.includes('Query'))
    controller.abort()
    await assert.rejects(call, { name: 'AbortError' })
  })

  it('says so when the table has no index', async () => {
    const bare = await newTable(client)
    await assert.rejects(listByCredential(client, bare, DEFAULT_ATTRIBUTES, 'alice'), { name: 'ValidationException' })
  })
})
