/** Which methods of which routes are covered: `methods`, `global`, and `config.idempotency`. */

import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { HTTPMethods, RouteOptions } from 'fastify'
import type { IdempotencyOptions } from '../src/index.ts'
import { createApp, logCollector } from './support/app.ts'
import { COVERED, countedRoute, send, twice, UNCOVERED } from './support/counted-route.ts'
import { watchedStore } from './support/stores.ts'

interface Coverage {
  readonly options?: IdempotencyOptions
  readonly config?: RouteOptions['config']
  readonly method: HTTPMethods | HTTPMethods[]
  readonly covered: readonly HTTPMethods[]
}

const COVERAGES: readonly Coverage[] = [
  { method: 'POST', covered: ['POST'] },
  { method: 'PATCH', covered: ['PATCH'] },
  { method: ['PUT', 'DELETE'], covered: [] },
  { method: ['POST', 'PUT'], covered: ['POST'] },
  { method: ['GET', 'POST'], covered: ['POST'] },
  { method: ['POST', 'PUT'], config: { idempotency: true }, covered: ['POST', 'PUT'] },
  { method: ['GET', 'POST'], config: { idempotency: true }, covered: ['POST'] },
  { method: ['GET', 'PUT', 'DELETE'], config: { idempotency: { ttlMs: 1_000 } }, covered: ['PUT', 'DELETE'] },
  { method: ['PUT', 'DELETE'], config: { idempotency: true }, covered: ['PUT', 'DELETE'] },
  { method: 'POST', config: { idempotency: false }, covered: [] },
  { options: { global: false }, method: ['POST', 'PATCH'], covered: [] },
  { options: { global: false }, method: 'POST', config: { idempotency: true }, covered: ['POST'] },
  { options: { global: false }, method: 'POST', config: { idempotency: {} }, covered: ['POST'] },
  { options: { methods: ['put'] }, method: ['POST', 'PUT'], covered: ['PUT'] },
  { options: { methods: ['DELETE'] }, method: ['POST', 'DELETE'], covered: ['DELETE'] },
  { options: { methods: [] }, method: ['POST'], covered: [] },
  { options: { methods: [] }, method: ['POST'], config: { idempotency: true }, covered: ['POST'] },
]

for (const { options, config, method, covered } of COVERAGES) {
  const what = JSON.stringify({ ...options, ...config, method })
  test(`${what}: covered are ${covered.join(', ') || 'none'}`, async (t) => {
    const { store, calls } = watchedStore()
    const app = await createApp(t, { store, ...options })
    countedRoute(app, '/payments', { method, ...(config && { config }) })
    for (const each of [method].flat()) {
      calls.length = 0
      const isCovered = covered.includes(each)
      assert.deepEqual(await twice(app, '/payments', each), isCovered ? COVERED : UNCOVERED, each)
      assert.deepEqual(calls, isCovered ? ['claim', 'complete', 'claim'] : [])
    }
  })
}

test('a method array: the same key is another key for each method', async (t) => {
  const { store, calls } = watchedStore()
  const app = await createApp(t, { store })
  countedRoute(app, '/payments', { method: ['POST', 'PUT'], config: { idempotency: true } })
  assert.equal(await send(app, 'POST', '/payments'), 'ran')
  assert.equal(await send(app, 'PUT', '/payments'), 'ran')
  assert.deepEqual(calls, ['claim', 'complete', 'claim', 'complete'])
})

test('HEAD of a GET and POST route is not covered, and asking for GET alone to be covered is warned about', async (t) => {
  const { lines, logger } = logCollector('warn')
  const { store, calls } = watchedStore()
  const app = await createApp(t, { store }, { logger })
  countedRoute(app, '/payments', { method: ['GET', 'POST'], config: { idempotency: { required: true } } })
  countedRoute(app, '/rates', { method: 'GET', config: { idempotency: true } })
  assert.deepEqual(await twice(app, '/payments', 'HEAD'), UNCOVERED)
  assert.equal((await app.inject('/payments')).statusCode, 200)
  assert.deepEqual(calls, [])
  assert.ok(lines.some(({ msg }) => msg.includes('GET /rates is safe to repeat')))
})
