/**
 * A process of its own that claims one key when it is told to: says `ready`, waits for a line, prints the outcome.
 * Arguments: endpoint, table, scoped key, options of the store and of the claim as JSON.
 */

import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { DynamoDBStore } from '../../../src/stores/dynamodb/index.ts'
import { clientOf } from './client.ts'

const [endpoint = '', tableName = '', scopedKey = '', settings = '{}'] = process.argv.slice(2)
const { leaseMs = 30_000, fingerprint = 'f', ...options } = JSON.parse(settings) as Record<string, never>

const client = clientOf(endpoint)
const store = new DynamoDBStore({ client, tableName, timeoutMs: 20_000, ...(options as object) })
process.stdout.write(`ready ${Date.now()}\n`)
await once(process.stdin, 'data')
const ask = { scopedKey, token: randomUUID(), fingerprint, leaseMs, ttlMs: 60_000, takeOverExpired: true }
const result = await store.claim(ask)
process.stdout.write(`${JSON.stringify({ outcome: result.outcome, at: Date.now() })}\n`)
client.destroy()
process.stdin.destroy()
