/** Stands before a DynamoDB and changes its replies where a test says so: what the server behind does not have. */

import { once } from 'node:events'
import { createServer, type IncomingHttpHeaders, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { buffer } from 'node:stream/consumers'

/** A reply as JSON; errors have `__type`. */
export type Reply = Record<string, unknown>

/** What to make of a reply: another one, or `undefined` for none at all, ever. */
export type Change = (reply: Reply) => Reply | undefined

export interface StandIn {
  readonly url: string
  /** Operations that were asked for, in order: `DescribeTable`, … */
  readonly calls: string[]
  /** What is done to the replies of an operation; the last of several stays. */
  change(operation: string, ...changes: Change[]): void
  /** Forgets calls and changes. */
  reset(): void
  stop(): Promise<void>
}

/** The error of this name, as a reply. */
export const failure =
  (name: string): Change =>
  () => ({ __type: `com.amazonaws.dynamodb.v20120810#${name}`, message: `${name}, says the stand-in` })

/** A stand-in on a free port, in front of the server at `target`. */
export async function startStandIn(target: string): Promise<StandIn> {
  const calls: string[] = []
  const changes = new Map<string, Change[]>()
  const serve = async (request: IncomingMessage, response: ServerResponse) => {
    const operation = String(request.headers['x-amz-target']).split('.')[1] ?? ''
    calls.push(operation)
    const body = await buffer(request)
    const answer = await fetch(target, { method: 'POST', headers: signedHeaders(request.headers), body })
    const reply = changed(changes.get(operation), (await answer.json()) as Reply)
    if (reply === undefined) return
    response.writeHead('__type' in reply ? 400 : 200, { 'content-type': 'application/x-amz-json-1.0' })
    response.end(JSON.stringify(reply))
  }
  const listener = createServer((request, response) => {
    serve(request, response).catch(() => request.socket.destroy())
  })
  await once(listener.listen(0, '127.0.0.1'), 'listening')
  return {
    url: `http://127.0.0.1:${(listener.address() as AddressInfo).port}`,
    calls,
    change: (operation, ...those) => void changes.set(operation, those),
    reset() {
      calls.length = 0
      changes.clear()
    },
    async stop() {
      listener.closeAllConnections()
      await new Promise((resolve) => listener.close(resolve))
    },
  }
}

/** Without those of the connection, which are its own. */
function signedHeaders(headers: IncomingHttpHeaders): [name: string, value: string][] {
  const names = ['authorization', 'content-type', ...Object.keys(headers).filter((name) => name.startsWith('x-amz-'))]
  return names.map((name) => [name, String(headers[name])])
}

function changed(changes: Change[] | undefined, reply: Reply): Reply | undefined {
  if (!changes) return reply
  const change = changes.length > 1 ? changes.shift() : changes[0]
  return change?.(reply)
}
