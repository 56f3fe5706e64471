/** What the test files of the store share: a server with a table for a file, and small requests and responses. */

import assert from 'node:assert/strict'
import { after, before } from 'node:test'
import { type AttributeValue, type DynamoDBClient, GetItemCommand, PutItemCommand } from '@aws-sdk/client-dynamodb'
import { DynamoDBStore, type DynamoDBStoreOptions } from '../../../src/stores/dynamodb/index.ts'
import { request } from '../requests.ts'
import { clientOf } from './client.ts'
import { type DynamoDBEndpoint, newTable, startDynamoDB } from './server.ts'

type Attributes = Record<string, AttributeValue>

/** A server and a table, there while the tests of a file run. */
export class TestBed<Server extends DynamoDBEndpoint = DynamoDBEndpoint> {
  server!: Server
  client!: DynamoDBClient
  tableName!: string

  constructor(start: () => Promise<Server>) {
    before(async () => {
      this.server = await start()
      this.client = clientOf(this.server.endpoint)
      this.tableName = await newTable(this.client)
    })
    after(async () => {
      this.client.destroy()
      await this.server.stop()
    })
  }

  /** A store on the table. */
  store(options: Partial<DynamoDBStoreOptions> = {}): DynamoDBStore {
    return new DynamoDBStore({ client: this.client, tableName: this.tableName, ...options })
  }

  /** The item as it is in the table. */
  async item(pk: string): Promise<Attributes | undefined> {
    const command = new GetItemCommand({ TableName: this.tableName, Key: { pk: { S: pk } }, ConsistentRead: true })
    return (await this.client.send(command)).Item
  }

  /** Writes an item by hand. */
  async put(item: Attributes): Promise<void> {
    await this.client.send(new PutItemCommand({ TableName: this.tableName, Item: item }))
  }
}

/** A server of the file's own, or the one of `DYNAMODB_ENDPOINT`; call it at the top level. */
export function testBed(): TestBed {
  return new TestBed(startDynamoDB)
}

export function responseOf(body: string | Buffer) {
  return { statusCode: 200, headers: {}, body, replayable: true }
}

/** Claims a key that must be free. */
export async function claimed(store: DynamoDBStore, asked = request()) {
  const result = await store.claim(asked)
  assert.ok(result.outcome === 'claimed', 'told that somebody else has the key')
  return result.claim
}
