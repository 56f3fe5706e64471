/** An HTTP proxy in front of a DynamoDB server that breaks things when a test says so, and counts what it broke. */

import { once } from 'node:events'
import { Agent, createServer, type IncomingMessage, request, type Server, type ServerResponse } from 'node:http'
import { buffer } from 'node:stream/consumers'
import { freePort } from '../redis/processes.ts'

/** An answer of DynamoDB's, in place of the server's own. */
export interface FakeAnswer {
  readonly status: number
  /** Name of the exception. */
  readonly error: string
  /** What a failed condition found. */
  readonly item?: Readonly<Record<string, object>>
  /** The whole body, when it is not JSON as DynamoDB sends it. */
  readonly body?: string
}

/** Each mode takes the place of the one before. */
export interface DynamoDBProxy {
  readonly endpoint: string
  /** Operations (`UpdateItem`, …) that arrived, in order. */
  readonly requests: string[]
  /** Replies that the client never got although the server had done the work. */
  readonly lostReplies: number
  /** Everything goes through: the mode it starts in. */
  pass(): void
  /** The next `count` requests are carried out, and the client gets a reset in place of the reply. Then `pass`. */
  resetAfterApply(count: number): void
  /** The next `count` requests are answered so, without reaching the server, or, `afterApply`, after it. Then `pass`. */
  answer(count: number, answer: FakeAnswer, afterApply?: boolean): void
  /** Accepts, reads and never answers; nothing reaches the server. */
  blackhole(): void
  /** Takes the found item out of failed conditions, as servers do that do not know ALL_OLD. */
  stripItems(): void
  stop(): Promise<void>
}

type Mode =
  | { readonly kind: 'pass' | 'blackhole' | 'strip' }
  | { readonly kind: 'reset'; left: number }
  | { readonly kind: 'answer'; left: number; readonly answer: FakeAnswer; readonly afterApply: boolean }

const HOST = '127.0.0.1'
const PASS: Mode = { kind: 'pass' }

/** A proxy on a free port. */
export async function startProxy(target: { readonly host: string; readonly port: number }): Promise<DynamoDBProxy> {
  const proxy = new FaultyProxy(target, await freePort())
  await proxy.listen()
  return proxy
}

interface Reply {
  readonly status: number
  readonly headers: Record<string, string>
  readonly body: Buffer
}

class FaultyProxy implements DynamoDBProxy {
  readonly endpoint: string
  readonly requests: string[] = []
  lostReplies = 0
  #mode: Mode = PASS
  readonly #port: number
  readonly #target: { readonly host: string; readonly port: number }
  readonly #agent = new Agent({ keepAlive: true })
  readonly #server: Server

  constructor(target: { readonly host: string; readonly port: number }, port: number) {
    this.#target = target
    this.#port = port
    this.endpoint = `http://${HOST}:${port}`
    this.#server = createServer((message, response) => {
      this.#serve(message, response).catch(() => message.socket.destroy())
    })
  }

  async listen(): Promise<void> {
    await once(this.#server.listen(this.#port, HOST), 'listening')
  }

  pass(): void {
    this.#mode = PASS
  }

  resetAfterApply(count: number): void {
    this.#mode = { kind: 'reset', left: count }
  }

  answer(count: number, answer: FakeAnswer, afterApply = false): void {
    this.#mode = { kind: 'answer', left: count, answer, afterApply }
  }

  blackhole(): void {
    this.#mode = { kind: 'blackhole' }
  }

  stripItems(): void {
    this.#mode = { kind: 'strip' }
  }

  async stop(): Promise<void> {
    this.#agent.destroy()
    this.#server.close()
    this.#server.closeAllConnections()
    await once(this.#server, 'close')
  }

  async #serve(message: IncomingMessage, response: ServerResponse): Promise<void> {
    const mode = this.#mode
    const body = await buffer(message)
    this.requests.push(String(message.headers['x-amz-target']).split('.')[1] ?? '')
    switch (mode.kind) {
      case 'pass':
        return send(response, await this.#forward(message, body))
      case 'blackhole':
        return
      case 'strip':
        return send(response, withoutItem(await this.#forward(message, body)))
      case 'reset':
        this.#count(mode)
        await this.#forward(message, body)
        this.lostReplies++
        message.socket.resetAndDestroy()
        return
      case 'answer':
        this.#count(mode)
        if (mode.afterApply) await this.#forward(message, body)
        return send(response, replyOf(mode.answer))
    }
  }

  #count(mode: Mode & { left: number }): void {
    mode.left--
    if (mode.left <= 0 && this.#mode === mode) this.pass()
  }

  async #forward({ method, url, headers }: IncomingMessage, body: Buffer): Promise<Reply> {
    const { host, port } = this.#target
    const outgoing = request({ host, port, method, path: url, headers, agent: this.#agent })
    outgoing.end(body)
    const [incoming] = (await once(outgoing, 'response')) as [IncomingMessage]
    const type = incoming.headers['content-type'] ?? 'application/x-amz-json-1.0'
    return { status: incoming.statusCode ?? 0, headers: { 'content-type': type }, body: await buffer(incoming) }
  }
}

function send(response: ServerResponse, { status, headers, body }: Reply): void {
  response.writeHead(status, { ...headers, 'content-length': body.length })
  response.end(body)
}

function replyOf({ status, error, item, body }: FakeAnswer): Reply {
  const json = { __type: `com.amazonaws.dynamodb.v20120810#${error}`, message: `${error}, by the proxy`, Item: item }
  return {
    status,
    headers: { 'content-type': 'application/x-amz-json-1.0' },
    body: Buffer.from(body ?? JSON.stringify(json)),
  }
}

function withoutItem(reply: Reply): Reply {
  if (reply.status !== 400) return reply
  const { Item: _, ...body } = JSON.parse(reply.body.toString()) as { Item?: unknown }
  return { ...reply, body: Buffer.from(JSON.stringify(body)) }
}
