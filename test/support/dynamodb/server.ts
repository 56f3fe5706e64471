/** DynamoDB-compatible servers as child processes on loopback, clients for them, and a table for each test. */

import { randomUUID } from 'node:crypto'
import { CreateTableCommand, type DynamoDBClient, ListTablesCommand } from '@aws-sdk/client-dynamodb'
import {
  endChild,
  eventually,
  freePort,
  hasEnded,
  logTail,
  newFolder,
  removeFolder,
  startChild,
} from '../redis/processes.ts'
import { dynoxideBinary } from './binary.ts'
import { clientOf } from './client.ts'

/** A server that a test may use, its own or the one of `DYNAMODB_ENDPOINT`. */
export interface DynamoDBEndpoint {
  readonly endpoint: string
  readonly host: string
  readonly port: number
  /** Ends the server for good. Does nothing to the one of `DYNAMODB_ENDPOINT`. */
  stop(): Promise<void>
}

/** A server that belongs to the test. Its records are in memory and end with it. */
export interface DynamoDBServer extends DynamoDBEndpoint {
  /** SIGKILL, as a crash: resolves when the process is gone. */
  kill(): Promise<void>
  /** SIGSTOP. Its connections stay open. */
  pause(): void
  /** SIGCONT. */
  resume(): void
}

const HOST = '127.0.0.1'

/** The server of `DYNAMODB_ENDPOINT`, when that is set; otherwise a process of the test's own. */
export async function startDynamoDB(): Promise<DynamoDBEndpoint> {
  const external = process.env['DYNAMODB_ENDPOINT']
  if (!external) return startOwnDynamoDB()
  const { hostname, port } = new URL(external)
  return { endpoint: external, host: hostname, port: Number(port || 80), stop: async () => {} }
}

/** Always a process of the test's own, to be stopped and killed. */
export async function startOwnDynamoDB(): Promise<DynamoDBServer> {
  const program = await dynoxideBinary()
  const port = await freePort()
  const folder = newFolder('dynamodb')
  const child = startChild(program, ['serve', '--host', HOST, '--port', String(port)], folder)
  const end = async () => {
    child.kill('SIGCONT')
    await endChild(child, 'SIGKILL')
  }
  const server: DynamoDBServer = {
    endpoint: `http://${HOST}:${port}`,
    host: HOST,
    port,
    kill: end,
    pause: () => void child.kill('SIGSTOP'),
    resume: () => void child.kill('SIGCONT'),
    async stop() {
      await end()
      removeFolder(folder)
    },
  }
  const client = clientOf(server.endpoint, { maxAttempts: 1 })
  try {
    await eventually(`DynamoDB on port ${port}`, () => {
      if (hasEnded(child)) throw new Error(`dynoxide ended at once:\n${logTail(folder)}`)
      return client.send(new ListTablesCommand({})).then(
        () => true,
        () => false,
      )
    })
  } catch (error) {
    await server.stop()
    throw error
  } finally {
    client.destroy()
  }
  return server
}

/** A new table, on demand, as the store needs it. Returns its name. */
export async function newTable(client: DynamoDBClient, keyName = 'pk'): Promise<string> {
  const TableName = `test-${randomUUID()}`
  await client.send(
    new CreateTableCommand({
      TableName,
      BillingMode: 'PAY_PER_REQUEST',
      KeySchema: [{ AttributeName: keyName, KeyType: 'HASH' }],
      AttributeDefinitions: [{ AttributeName: keyName, AttributeType: 'S' }],
    }),
  )
  return TableName
}
