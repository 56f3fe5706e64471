/** One handler behind the plugin and, for comparison, behind bare Fastify; answers as they came over a real socket. */

import assert from 'node:assert/strict'
import { once } from 'node:events'
import { request as httpRequest, type IncomingMessage } from 'node:http'
import type { TestContext } from 'node:test'
import { setImmediate as nextTurn } from 'node:timers/promises'
import fastify, { type FastifyInstance, type FastifyReply, type FastifyRequest } from 'fastify'
import { type IdempotencyOptions, type IdempotencyStore, MemoryStore } from '../../src/index.ts'
import { createApp, listen } from './app.ts'
import { gate, intercepted, until } from './stores.ts'

/** What a client has of a response. */
export interface Answer {
  readonly statusCode: number
  /** `name: value` lines, names in lower case; lines of one name in the order in which they came. */
  readonly headers: readonly string[]
  readonly body: Buffer
  /** False when the connection broke before the body was over. */
  readonly isWhole: boolean
}

/** A route whose replies are looked at. */
export interface ReplyCase {
  readonly handler: (this: FastifyInstance, request: FastifyRequest, reply: FastifyReply) => unknown
  readonly options?: IdempotencyOptions
  /** Route options: a schema, hooks. */
  readonly route?: object
  /** What the app has besides the route: hooks, an error handler, parsers. */
  readonly prepare?: (app: FastifyInstance) => void
}

/** Says so instead of hanging the suite when a client waits in vain. */
const PATIENCE_MS = 3_000
const PATH = '/case'

/** A POST of the same small body each time, over a connection of its own. */
export async function wirePost(baseUrl: string, key: string | undefined, path = PATH): Promise<Answer> {
  const { request, response } = openPost(baseUrl, key, path)
  const timer = setTimeout(() => request.destroy(new Error(`no answer within ${PATIENCE_MS} ms`)), PATIENCE_MS)
  try {
    return await answerOf(await response)
  } finally {
    clearTimeout(timer)
  }
}

/** A POST whose client can walk away: `request.destroy()`. */
export function openPost(baseUrl: string, key: string | undefined, path = PATH) {
  const headers = { 'content-type': 'application/json', ...(key !== undefined && { 'idempotency-key': key }) }
  const request = httpRequest(new URL(path, baseUrl), { method: 'POST', headers, agent: false })
  const response = once(request, 'response').then(([message]) => message as IncomingMessage)
  response.catch(() => {})
  request.on('error', () => {})
  request.end('{"amount":100}')
  return { request, response }
}

async function answerOf(message: IncomingMessage): Promise<Answer> {
  const chunks: Buffer[] = []
  try {
    for await (const chunk of message) chunks.push(chunk)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ECONNRESET') throw error
  }
  const pairs = Array.from({ length: message.rawHeaders.length / 2 }, (_, at) => message.rawHeaders.slice(2 * at))
  const headers = pairs.map(([name, value]) => `${name?.toLowerCase()}: ${value}`)
  return { statusCode: message.statusCode ?? 0, headers, body: Buffer.concat(chunks), isWhole: message.complete }
}

/** The case behind the plugin, listening. `runs` counts its handler; `post` sends the same request with a key. */
export async function serveCase(t: TestContext, { handler, options, route, prepare }: ReplyCase) {
  const store = options?.store ?? new MemoryStore()
  const app = await createApp(t, { ...options, store }, { forceCloseConnections: true })
  const counter = { runs: 0 }
  prepare?.(app)
  app.post(PATH, { ...route }, function (request, reply) {
    counter.runs++
    return handler.call(this, request, reply) as never
  })
  const url = await listen(app)
  const state = async (key: string) =>
    (await store.read(app.idempotency.scopedKey('anonymous', 'POST', PATH, key)))?.state
  return {
    app,
    counter,
    url,
    post: (key = 'k-1') => wirePost(url, key),
    state,
    /** Resolves when no request holds the key any more. */
    settled: (key = 'k-1') => until('the claim to end', async () => (await state(key)) !== 'pending'),
  }
}

/** What Fastify alone answers for the case: the first answer of the plugin must be no different. */
export async function bareAnswer(t: TestContext, { handler, route, prepare }: ReplyCase): Promise<Answer> {
  const app = fastify({ forceCloseConnections: true })
  t.after(() => app.close())
  prepare?.(app)
  app.post(PATH, { ...route }, handler as never)
  return wirePost(await listen(app), 'k-1')
}

/** The whole promise, for one case: same as without the plugin, run once, replayed as it was. */
export async function assertReplayed(t: TestContext, replyCase: ReplyCase): Promise<{ first: Answer; again: Answer }> {
  const { counter, post } = await serveCase(t, replyCase)
  const bare = await bareAnswer(t, replyCase)
  const first = await post()
  const again = [await post(), await post()] as const
  assertSame(first, bare, 'the first answer and that of bare Fastify')
  for (const replay of again) assertReplayOf(first, replay)
  assert.equal(counter.runs, 1, 'runs of the handler')
  return { first, again: again[0] }
}

/** `again` is the recorded `first`, and says so. */
export function assertReplayOf(first: Answer, again: Answer): void {
  assertSame(again, first, 'the replay and the first answer')
  assert.deepEqual(linesOf(first, 'idempotent-replayed'), [], 'a first answer has no Idempotent-Replayed')
  assert.deepEqual(linesOf(again, 'idempotent-replayed'), ['idempotent-replayed: true'])
}

/** Same status, body bytes and headers, but for those of the connection and of the message. */
export function assertSame(actual: Answer, expected: Answer, what: string): void {
  assert.equal(actual.statusCode, expected.statusCode, `status of ${what}`)
  assert.deepEqual(comparable(actual), comparable(expected), `headers of ${what}`)
  assert.equal(actual.body.toString('latin1'), expected.body.toString('latin1'), `body of ${what}`)
  assert.equal(actual.isWhole, expected.isWhole, `completeness of ${what}`)
}

const NOT_COMPARED = /^(date|connection|keep-alive|content-length|transfer-encoding|idempotent-replayed): /

function comparable({ headers }: Answer): string[] {
  const nameOf = (line: string) => line.slice(0, line.indexOf(':'))
  return headers
    .filter((line) => !NOT_COMPARED.test(line))
    .sort((one, other) => (nameOf(one) < nameOf(other) ? -1 : Number(nameOf(one) > nameOf(other))))
}

/** The header lines of one name. */
export function linesOf({ headers }: Answer, name: string): string[] {
  return headers.filter((line) => line.startsWith(`${name}: `))
}

/** A retry is told that the operation ran and that its answer is lost. */
export function assertNotReplayable(again: Answer): void {
  assert.equal(again.statusCode, 409, again.body.toString())
  assert.deepEqual(linesOf(again, 'content-type'), ['content-type: application/problem+json'])
  assert.deepEqual(linesOf(again, 'idempotent-replayed'), [])
  const { code, retryable, safeNewKey } = JSON.parse(again.body.toString())
  assert.deepEqual(
    { code, retryable, safeNewKey },
    { code: 'FST_IDEMPOTENCY_NOT_REPLAYABLE', retryable: false, safeNewKey: false },
  )
}

/** A memory store whose writes are answered in a later turn of the event loop, as those of a server are. */
export function remoteStore(): IdempotencyStore {
  return intercepted(new MemoryStore(), async (operation, perform) => {
    if (operation === 'read') return perform()
    await nextTurn()
    const result = await perform()
    await nextTurn()
    return result
  })
}

/** Gates around a handler whose client leaves: `entered`, then the test breaks the connection, then `closed`. */
export function departure() {
  const entered = gate()
  const closed = gate()
  const wait = async (reply: FastifyReply) => {
    reply.raw.on('close', () => closed.open())
    entered.open()
    await closed.opened
  }
  return { entered, closed, wait }
}
