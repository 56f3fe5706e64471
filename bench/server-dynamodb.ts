/** The measured side of `npm run bench:dynamodb`: bare, written by hand, and with the plugin, on one DynamoDB server. */

import { randomUUID } from 'node:crypto'
import { DynamoDBClient, PutItemCommand, UpdateItemCommand } from '@aws-sdk/client-dynamodb'
import type { FastifyInstance } from 'fastify'
import { DynamoDBStore } from 'fastify-idempotency/dynamodb'
import { capture, serve, start } from './serve.ts'

const [, endpoint = '', tableName = ''] = process.argv.slice(2)

const TTL_MS = 60_000
const client = new DynamoDBClient({
  endpoint,
  region: 'us-east-1',
  credentials: { accessKeyId: 'bench', secretAccessKey: 'bench' },
})

/** What one would write without a library: a conditional put before the handler, an update after it. */
function byHand(app: FastifyInstance): void {
  app.post('/payments', async (request, reply) => {
    const pk = { S: `hand#${request.headers['idempotency-key']}` }
    const token = { S: randomUUID() }
    const expires = { N: String(Math.floor((Date.now() + TTL_MS) / 1_000)) }
    try {
      await client.send(
        new PutItemCommand({
          TableName: tableName,
          Item: { pk, claim_token: token, expires_at: expires },
          ConditionExpression: 'attribute_not_exists(pk)',
          ReturnValuesOnConditionCheckFailure: 'ALL_OLD',
        }),
      )
    } catch (error) {
      const { Item: item } = error as { Item?: { answer?: { S?: string } } }
      if (item?.answer?.S === undefined) throw error
      return reply.type('application/json').send(item.answer.S)
    }
    const body = JSON.stringify(capture())
    await client.send(
      new UpdateItemCommand({
        TableName: tableName,
        Key: { pk },
        UpdateExpression: 'SET answer = :answer, expires_at = :expires',
        ConditionExpression: 'claim_token = :token',
        ExpressionAttributeValues: { ':answer': { S: body }, ':expires': expires, ':token': token },
      }),
    )
    return reply.type('application/json').send(body)
  })
}

await serve({
  bare: () => start(),
  hand: () => start(undefined, byHand),
  plugin: () =>
    start({
      store: new DynamoDBStore({ client, tableName }),
      ttlMs: TTL_MS,
      credential: () => 'acct_1',
      metrics: false,
    }),
})
