/**
 * What the plugin costs on DynamoDB: server CPU per request beside a conditional put and update written by hand, on a
 * DynamoDB-compatible server that is started for the run.
 * `npm run bench:dynamodb`, or with `-- <processes> <rounds> <requests>`.
 */

import { createTable } from 'fastify-idempotency/dynamodb'
import { clientOf } from '../test/support/dynamodb/client.ts'
import { startOwnDynamoDB } from '../test/support/dynamodb/server.ts'
import { BESIDE_BY_HAND, besideByHand, inTurn, type Plan, planText, printTable, type Variant } from './measure.ts'

const [processes = 3, rounds = 6, requests = 400] = process.argv.slice(2).map(Number)

const bare: Variant = { name: 'bare route', server: 'bare' }
const byHand: Variant = { name: 'by hand, first request', server: 'hand' }
const first: Variant = { name: 'plugin, first request', server: 'plugin' }
const replay: Variant = { name: 'plugin, replay', server: 'plugin', repeats: true }
const variants = [bare, byHand, { ...byHand, name: 'by hand, replay', repeats: true }, first, replay]

/** Server CPU as a multiple of the hand-written first request. */
const BUDGETS = new Map([[first, 1.15]])

const dynamodb = await startOwnDynamoDB()
const tableName = 'bench'
const client = clientOf(dynamodb.endpoint)
await createTable(client, { tableName })
client.destroy()
const plan: Plan = {
  script: 'server-dynamodb.js',
  args: [dynamodb.endpoint, tableName],
  warmUp: 3_000,
  processes,
  rounds,
  requests,
}
const samples = await inTurn(variants, plan)
await dynamodb.stop()

console.log(`${planText(plan)}; ratios are medians of per-round ratios`)
const of = (variant: Variant) => samples.get(variant) ?? []
const rows = [...samples].map(([variant, own]) =>
  besideByHand(variant, own, of(bare), of(byHand), BUDGETS.get(variant)),
)
printTable(BESIDE_BY_HAND, rows)
