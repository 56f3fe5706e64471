/** What README and docs show does what they say. */

import assert from 'node:assert/strict'
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { before, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyInstance } from 'fastify'
import { Registry } from 'prom-client'
import { createApp, listen, post } from './support/app.ts'
import { startRedis } from './support/redis/servers.ts'

const root = resolve(import.meta.dirname, '..')
const folder = join(root, 'node_modules', '.cache', 'docs-run')
let modules = 0

before(() => {
  rmSync(folder, { recursive: true, force: true })
  mkdirSync(folder, { recursive: true })
})

/** The TypeScript block of a page that has `mark` in it, as a module; `also` is put behind it. */
async function run(page: string, mark: string, also = '', redisUrl = ''): Promise<Record<string, unknown>> {
  const blocks = [...readFileSync(join(root, page), 'utf8').matchAll(/^```ts\n(.*?)^```$/gms)]
  const code = blocks.map(([, text = '']) => text).find((text) => text.includes(mark))
  assert.ok(code, `no block with ${mark} in ${page}`)
  const file = join(folder, `block-${++modules}.mts`)
  const source = code
    .replaceAll("'fastify-idempotency'", "'../../../src/index.ts'")
    .replaceAll("'fastify-idempotency/redis'", "'../../../src/stores/redis/index.ts'")
    .replace('port: 3000', 'port: 0')
    .replace('redis://127.0.0.1:6379', redisUrl)
  writeFileSync(file, source + also)
  return import(file)
}

test('the quick start of the README charges once, and gives the retry the same answer', async (t) => {
  const { app } = (await run('README.md', "derive('psp')", 'export { app }\n')) as { app: FastifyInstance }
  t.after(() => app.close())
  const first = await post(app, '/payments', '"8e03978e"')
  const retry = await post(app, '/payments', '"8e03978e"')
  assert.equal(first.statusCode, 201)
  assert.equal(retry.statusCode, 201)
  assert.equal(retry.headers['idempotent-replayed'], 'true')
  assert.equal(retry.body, first.body)
  assert.equal((await post(app, '/payments', undefined)).statusCode, 400)
})

test('the routes of the README each have their own answer to a store that is down', async (t) => {
  const { app } = (await run('README.md', "onStoreError: 'proceed'", 'export { app }\n')) as { app: FastifyInstance }
  t.after(() => app.close())
  const { store } = app.idempotency
  t.mock.method(store, 'claim', () => Promise.reject(new Error('connection refused')))
  assert.equal((await post(app, '/payments', 'k')).statusCode, 503)
  assert.equal((await post(app, '/comments', 'k')).statusCode, 200)
})

test('the first block of the Redis page keeps its records in Redis', async (t) => {
  const redis = await startRedis()
  t.after(() => redis.stop())
  const ran = await run('docs/stores/redis.md', "keyPrefix: 'payments:'", 'export { app }\n', redis.url)
  const app = ran['app'] as FastifyInstance
  t.after(() => app.close())
  app.post('/pay', async () => 'paid')
  await app.ready()
  assert.equal((await post(app, '/pay', 'k')).body, 'paid')
  assert.equal((await post(app, '/pay', 'k')).headers['idempotent-replayed'], 'true')
  assert.match(await redis.cli('keys', 'payments:idem#v1#*'), /#k$/)
})

test('the retry loop of the clients page pays once through a refusal and a lost answer', async (t) => {
  const { pay } = (await run('docs/clients.md', 'RETRYABLE')) as { pay(url: string, body: object): Promise<Response> }
  const app = await createApp(t)
  let charges = 0
  app.post('/pay', async () => {
    charges++
    await sleep(20)
    return { id: `pay_${charges}` }
  })
  let attempts = 0
  app.addHook('onRequest', async (_request, reply) => {
    attempts++
    if (attempts === 1) return reply.code(503).send()
  })
  app.addHook('onSend', async (request) => {
    if (attempts === 2) request.raw.socket.destroy() // the charge was made, its answer is lost
  })
  const response = await pay(`${await listen(app)}/pay`, { amount: 1 })
  assert.deepEqual(await response.json(), { id: 'pay_1' })
  assert.deepEqual([charges, attempts], [1, 3])
})

test('a lost lease reaches the subscriber of the observability page', async (t) => {
  const warn = t.mock.method(console, 'warn', () => {})
  await run('docs/observability.md', 'lease-lost')
  const { channel } = await import('node:diagnostics_channel')
  channel('fastify-idempotency:lease-lost').publish({ route: '/pay', requestId: 'req-1', keyDigest: 'abc' })
  assert.deepEqual(warn.mock.calls[0]?.arguments, ['check for a double effect: /pay, request req-1, key abc'])
})

test('the observability page lists every metric of the core, and no other', async (t) => {
  const registry = new Registry()
  await createApp(t, { metrics: registry })
  const page = readFileSync(join(root, 'docs/observability.md'), 'utf8')
  const listed = [...page.matchAll(/^\| `(idempotency_\w+)` \| (\w+) \|/gm)].map(([, name, type]) => `${name} ${type}`)
  const registered = registry.getMetricsAsArray().map(({ name }) => name)
  const types = new Map((await registry.getMetricsAsJSON()).map(({ name, type }) => [name, String(type)]))
  assert.deepEqual(listed.toSorted(), registered.map((name) => `${name} ${types.get(name)}`).toSorted())
})
