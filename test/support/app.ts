/** A Fastify app with the plugin on it, closed when the test is over. */

import type { TestContext } from 'node:test'
import fastify, { type FastifyInstance, type FastifyServerOptions, type InjectOptions } from 'fastify'
import idempotency, { type IdempotencyOptions } from '../../src/index.ts'

/** An app with the plugin registered; add routes, then `inject` or `listen`. */
export async function createApp(
  t: TestContext,
  options: IdempotencyOptions = {},
  server: FastifyServerOptions = {},
): Promise<FastifyInstance> {
  const app = fastify(server)
  t.after(() => app.close())
  await app.register(idempotency, { metrics: false, ...options })
  return app
}

/** Starts an app on a free loopback port; returns its base URL. */
export function listen(app: FastifyInstance): Promise<string> {
  return app.listen({ host: '127.0.0.1', port: 0 })
}

/** A POST through `inject`, with a key unless it is undefined. On its way at once, awaited or not. */
export async function post(app: FastifyInstance, url: string, key: string | undefined, more: InjectOptions = {}) {
  const headers = key === undefined ? more.headers : { 'idempotency-key': key, ...more.headers }
  return app.inject({ method: 'POST', url, payload: { amount: 100 }, ...more, ...(headers && { headers }) })
}

/** Log lines of an app, collected: pass `logger` to Fastify and read `lines`. */
export function logCollector(level = 'debug') {
  const lines: { level: number; msg: string; [field: string]: unknown }[] = []
  const stream = { write: (line: string) => void lines.push(JSON.parse(line)) }
  return { lines, logger: { level, stream } }
}
