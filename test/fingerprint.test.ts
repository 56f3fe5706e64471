/** What counts as the same request, and what as a reuse of the key for another one. */

import assert from 'node:assert/strict'
import { describe, it, type TestContext } from 'node:test'
import fc from 'fast-check'
import type { InjectOptions } from 'fastify'
import { fingerprintOf, IgnoredFields } from '../src/request/fingerprint.ts'
import { createApp, post } from './support/app.ts'

const JSON_TYPE = { 'content-type': 'application/json' }
const BYTES_TYPE = { 'content-type': 'application/octet-stream' }

async function answerTo(t: TestContext, options: object, first: InjectOptions, second: InjectOptions) {
  const app = await createApp(t, options, { bodyLimit: 10_000_000 })
  app.addContentTypeParser('application/octet-stream', { parseAs: 'buffer' }, (_request, body, done) =>
    done(null, body),
  )
  app.post('/pay', async () => 'paid')
  assert.equal((await post(app, '/pay', 'k', first)).statusCode, 200)
  const retry = await post(app, '/pay', 'k', second)
  if (retry.statusCode === 200) assert.equal(retry.headers['idempotent-replayed'], 'true')
  else assert.equal(retry.json().code, 'FST_IDEMPOTENCY_KEY_REUSED')
  return retry.statusCode
}

const json = (payload: unknown): InjectOptions => ({ headers: JSON_TYPE, payload: JSON.stringify(payload) })
const raw = (payload: string): InjectOptions => ({ headers: JSON_TYPE, payload })
const bytes = (...values: number[]): InjectOptions => ({ headers: BYTES_TYPE, payload: Buffer.from(values) })
const big = (last: string) => json({ rows: 'x'.repeat(5_000_000), last })

type Case = [name: string, first: InjectOptions, second: InjectOptions, options?: object]

const retries: Case[] = [
  ['the same body', json({ a: 1 }), json({ a: 1 })],
  [
    'members in another order, at every depth',
    raw('{"a":{"x":1,"y":[{"p":1,"q":2}]},"b":2}'),
    raw('{"b":2,"a":{"y":[{"q":2,"p":1}],"x":1}}'),
  ],
  ['other white space and escapes', raw('{"a":"\\u0041"}'), raw('{ "a" : "A" }')],
  ['no body twice', { payload: '' }, { payload: '' }],
  ['a JSON body of 5 MB', big('a'), big('a')],
  ['equal bytes', bytes(1, 2, 3), bytes(1, 2, 3)],
  ['another ignored member', json({ a: 1, sent_at: 1 }), json({ a: 1, sent_at: 2 }), { ignoreFields: ['sent_at'] }],
  [
    'an ignored member that is only in one of them',
    json({ a: 1 }),
    json({ a: 1, sent_at: 2 }),
    { ignoreFields: ['sent_at'] },
  ],
  [
    'a nested ignored member',
    json({ meta: { trace_id: 'a', b: 1 } }),
    json({ meta: { trace_id: 'b', b: 1 } }),
    { ignoreFields: ['trace_id'] },
  ],
  [
    'an ignored path',
    json({ meta: { trace_id: 'a' } }),
    json({ meta: { trace_id: 'b' } }),
    { ignoreFields: ['meta.trace_id'] },
  ],
  [
    'an ignored path inside an array',
    json({ items: [{ nonce: 1 }] }),
    json({ items: [{ nonce: 2 }] }),
    { ignoreFields: ['items.nonce'] },
  ],
  [
    'another body when the fingerprint of the route says so',
    json({ id: 1, x: 1 }),
    json({ id: 1, x: 2 }),
    { fingerprint: ({ body }: { body: { id: number } }) => String(body.id) },
  ],
]

const reuses: Case[] = [
  ['another value', json({ a: 1 }), json({ a: 2 })],
  ['a number as text', json({ a: 1 }), json({ a: '1' })],
  ['null for absent', json({ a: null }), json({})],
  ['an array in another order', json([1, 2]), json([2, 1])],
  ['a body for none', { payload: '' }, json({})],
  ['the body null for none', { payload: '' }, raw('null')],
  ['an array for its object twin', json(['a']), json({ 0: 'a' })],
  ['one byte of a Buffer', bytes(1, 2, 3), bytes(1, 2, 4)],
  ['a Buffer for its text', { headers: BYTES_TYPE, payload: Buffer.from('"a"') }, raw('"a"')],
  [
    'text for the JSON that it spells',
    { headers: { 'content-type': 'text/plain' }, payload: '{"a":1}' },
    json({ a: 1 }),
  ],
  ['the last byte of 5 MB', big('a'), big('b')],
  [
    'a member that is ignored elsewhere only',
    json({ trace_id: 'a' }),
    json({ trace_id: 'b' }),
    { ignoreFields: ['meta.trace_id'] },
  ],
  ['a __proto__ member', raw('{"a":1}'), raw('{"a":1,"__proto_":{}}')],
  [
    'what the fingerprint of the route returns',
    json({ id: 1 }),
    json({ id: 2 }),
    { fingerprint: ({ body }: { body: object }) => body },
  ],
  [
    'a Buffer that the fingerprint returns',
    json({ id: 1 }),
    json({ id: 2 }),
    { fingerprint: ({ body }: { body: { id: number } }) => Buffer.from([body.id]) },
  ],
]

describe('fingerprint', () => {
  for (const [name, first, second, options = {}] of retries) {
    it(`${name}: a retry`, async (t) => assert.equal(await answerTo(t, options, first, second), 200))
  }

  for (const [name, first, second, options = {}] of reuses) {
    it(`${name}: a reuse`, async (t) => assert.equal(await answerTo(t, options, first, second), 422))
  }

  it('is taken at the claim: a handler that changes request.body changes nothing', async (t) => {
    const app = await createApp(t)
    app.post('/pay', async (request) => {
      Object.assign(request.body as object, { amount: 0, internal: true })
      return 'paid'
    })
    assert.equal((await post(app, '/pay', 'k')).statusCode, 200)
    assert.equal((await post(app, '/pay', 'k')).headers['idempotent-replayed'], 'true')
    assert.equal((await post(app, '/pay', 'k', { payload: { amount: 0, internal: true } })).statusCode, 422)
  })

  it('a reuse is told nothing about the first request', async (t) => {
    const app = await createApp(t)
    app.post('/pay', async () => 'paid')
    await post(app, '/pay', 'k', { payload: { secret: 'hunter2' } })
    const { body, headers } = await post(app, '/pay', 'k', { payload: { secret: 'guess' } })
    const fingerprint = fingerprintOf({ method: 'POST', url: '/pay', body: { secret: 'hunter2' } })
    assert.doesNotMatch(body + JSON.stringify(headers), new RegExp(`hunter2|${fingerprint}`))
  })

  it('a body nested too deeply to compare is refused, and the process lives', async (t) => {
    const app = await createApp(t)
    app.post('/pay', async () => 'paid')
    const payload = '['.repeat(200_000) + ']'.repeat(200_000)
    for (const route of ['/pay', '/pay']) {
      const response = await post(app, route, 'k', { headers: JSON_TYPE, payload })
      assert.equal(response.statusCode, 400)
      assert.equal(response.json().code, 'FST_IDEMPOTENCY_BODY_TOO_DEEP')
    }
  })

  for (const choice of [undefined, 7, null, Promise.resolve('a')]) {
    it(`a fingerprint function that returns ${String(choice)} is an error`, async (t) => {
      const app = await createApp(t, { fingerprint: (() => choice) as unknown as () => string })
      app.post('/pay', async () => assert.fail('must not run'))
      const { statusCode, body } = await post(app, '/pay', 'k')
      assert.equal(statusCode, 500)
      assert.match(body, /fingerprint\(request\) must return/)
    })
  }

  it('does not depend on member order, for any JSON', () => {
    const shuffled = (value: unknown): unknown => {
      if (Array.isArray(value)) return value.map(shuffled)
      if (value === null || typeof value !== 'object') return value
      return Object.fromEntries(
        Object.entries(value)
          .reverse()
          .map(([name, member]) => [name, shuffled(member)]),
      )
    }
    const source = (body: unknown) => ({ method: 'POST', url: '/', body })
    fc.assert(
      fc.property(fc.jsonValue(), (body) => {
        assert.equal(fingerprintOf(source(body)), fingerprintOf(source(shuffled(body))))
      }),
    )
  })

  it('differs for different JSON', () => {
    const source = (body: unknown) => ({ method: 'POST', url: '/', body })
    fc.assert(
      fc.property(fc.jsonValue(), fc.jsonValue(), (one, other) => {
        fc.pre(JSON.stringify(one) !== JSON.stringify(other))
        const isEqual = fingerprintOf(source(one)) === fingerprintOf(source(other))
        if (isEqual) assert.deepEqual(JSON.parse(JSON.stringify(one)), JSON.parse(JSON.stringify(other)))
      }),
    )
  })

  it('ignoring members leaves the request body as it was', () => {
    const body = { a: 1, meta: { trace_id: 'x', list: [{ trace_id: 'y', b: 2 }] } }
    const before = structuredClone(body)
    assert.deepEqual(new IgnoredFields(['trace_id']).omitFrom(body), { a: 1, meta: { list: [{ b: 2 }] } })
    assert.deepEqual(body, before)
  })
})
