/**
 * The plugin on DynamoDB, as one would run it in production.
 *
 * `IDEMPOTENCY_TABLE=idempotency`, and region and credentials as the AWS SDK finds them. The table is made by your
 * infrastructure code; docs/stores/dynamodb.md has the templates and the policy that this process needs.
 */

import { DynamoDBClient } from '@aws-sdk/client-dynamodb'
import fastify from 'fastify'
import idempotency from 'fastify-idempotency'
import { DynamoDBStore } from 'fastify-idempotency/dynamodb'

const { IDEMPOTENCY_TABLE = 'idempotency', DYNAMODB_ENDPOINT, PORT = '3000' } = process.env
const accountOfApiKey = new Map([['key-of-acme', 'acct_acme']])

const app = fastify({ logger: true })

const client = new DynamoDBClient({
  ...(DYNAMODB_ENDPOINT && { endpoint: DYNAMODB_ENDPOINT }),
  maxAttempts: 1, // the store itself tries again, within the time that a request may wait
})
// A client that is handed over is ours to destroy. Fastify runs these hooks backwards: after that of the plugin below.
app.addHook('onClose', () => client.destroy())

await app.register(idempotency, {
  store: new DynamoDBStore({ client, tableName: IDEMPOTENCY_TABLE, credentialIndex: true }),
  credential: (request) => accountOfApiKey.get(String(request.headers['x-api-key'])) ?? 'anonymous',
})
app.post('/payments', { config: { idempotency: { required: true } } }, async (request, reply) => {
  reply.code(201)
  return { id: 'pay_1', reference: request.idempotency?.derive('psp') }
})

await app.listen({ port: Number(PORT) })
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => app.close())
