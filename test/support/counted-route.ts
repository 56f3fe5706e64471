/** Routes that count their runs, and what became of a request and its retry. */

import assert from 'node:assert/strict'
import type { FastifyInstance, RouteOptions } from 'fastify'

/** What {@link twice} says of a covered route. */
export const COVERED = ['ran', 'replayed']
/** What {@link twice} says of a route that is not covered. */
export const UNCOVERED = ['ran', 'ran']

/** Adds a route (POST unless told) whose answers say which run of the handler they are. */
export function countedRoute(app: FastifyInstance, url: string, more: Partial<RouteOptions> = {}): void {
  let runs = 0
  const handler = async (request: { method: string }) => ({ route: `${request.method} ${url}`, run: ++runs })
  app.route({ method: 'POST', url, handler, ...more } as RouteOptions)
}

/** Sends one request under the key `k`: did its handler run, or was it a replay? */
export async function send(app: FastifyInstance, method: string, url: string): Promise<string> {
  const payload = ['GET', 'HEAD'].includes(method) ? {} : { payload: { amount: 100 } }
  const answer = await app.inject({ method: method as 'POST', url, headers: { 'idempotency-key': 'k' }, ...payload })
  assert.equal(answer.statusCode, 200, answer.body)
  return answer.headers['idempotent-replayed'] === 'true' ? 'replayed' : 'ran'
}

/** A request and its retry. */
export async function twice(app: FastifyInstance, url: string, method = 'POST'): Promise<string[]> {
  return [await send(app, method, url), await send(app, method, url)]
}
