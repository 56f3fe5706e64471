/** DynamoDB for three apps, each behind a proxy of its own. */

import { setTimeout as sleep } from 'node:timers/promises'
import type { DynamoDBClient } from '@aws-sdk/client-dynamodb'
import { DynamoDBStore } from '../../../src/stores/dynamodb/index.ts'
import { clientOf } from '../dynamodb/client.ts'
import { type FakeAnswer, startProxy } from '../dynamodb/proxy.ts'
import { newTable, startDynamoDB } from '../dynamodb/server.ts'
import { APPS, type Bed, inTurn } from './bed.ts'
import type { Chance } from './chance.ts'
import type { Link } from './recorder.ts'

const THROTTLED: FakeAnswer = { status: 400, error: 'ProvisionedThroughputExceededException' }
const FAILED: FakeAnswer = { status: 500, error: 'InternalServerError' }

/**
 * One table. Two apps have clients that send again what was not answered, the third one that does not. Replies are
 * lost, calls throttled or failed before or after they were carried out, and the server is silent for a while.
 */
export async function dynamoDBBed(): Promise<Bed> {
  const server = await startDynamoDB()
  const proxies = await Promise.all(Array.from({ length: APPS }, () => startProxy(server)))
  const owner = clientOf(server.endpoint)
  const tableName = await newTable(owner)
  const clients = proxies.map(({ endpoint }, app) => clientOf(endpoint, app === 0 ? { maxAttempts: 1 } : {}))
  const links = clients.map((client) => linkOf(client, tableName))
  let failures = 0
  let silences = 0
  const loseReplies = (chance: Chance) => chance.pick(proxies).resetAfterApply(chance.between(1, 3))
  const fail = (answer: FakeAnswer, isAfterwards: boolean) => (chance: Chance) => {
    failures++
    chance.pick(proxies).answer(chance.between(1, 3), answer, isAfterwards)
  }
  const pause = (chance: Chance) => sleep(chance.between(20, 120))
  const calm = () => proxies.forEach((proxy) => void proxy.pass())
  return {
    links,
    disturb: inTurn(
      loseReplies,
      pause,
      fail(THROTTLED, false),
      pause,
      loseReplies,
      pause,
      fail(FAILED, true),
      pause,
      (chance) => {
        silences++
        chance.pick(proxies).blackhole()
      },
      pause,
      pause,
      calm,
      pause,
    ),
    calm,
    faults: () => ({
      'lost replies': proxies.reduce((sum, { lostReplies }) => sum + lostReplies, 0),
      failures,
      silences,
    }),
    async stop() {
      for (const client of [owner, ...clients]) client.destroy()
      await Promise.all(proxies.map((proxy) => proxy.stop()))
      await server.stop()
    },
  }
}

// Each attempt of the SDK's that fails passes here; a condition that failed is an answer.
function linkOf(client: DynamoDBClient, tableName: string): Link {
  let losses = 0
  const count = (error: unknown): never => {
    if ((error as Error).name !== 'ConditionalCheckFailedException') losses++
    throw error
  }
  client.middlewareStack.add((next) => (args) => next(args).catch(count), { step: 'finalizeRequest', priority: 'low' })
  return { store: new DynamoDBStore({ client, tableName, clockSkewMs: 20 }), losses: () => losses }
}
