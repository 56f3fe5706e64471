/** DESIGN §8, row by row: what a client is told when its request does not run. */

import assert from 'node:assert/strict'
import { describe, it, type TestContext } from 'node:test'
import type { FastifyInstance } from 'fastify'
import { type IdempotencyOptions, MemoryStore } from '../src/index.ts'
import { createApp, listen, post } from './support/app.ts'
import { breakableStore, gate, until, watchedStore } from './support/stores.ts'

type Provoke = (app: FastifyInstance) => Promise<{ statusCode: number; headers: Record<string, unknown>; body: string }>

interface Row {
  readonly code: string
  readonly status: number
  readonly title: string
  readonly retryable: boolean
  readonly safeNewKey: boolean
  readonly retryAfter?: string
  readonly options?: (t: TestContext) => IdempotencyOptions
  readonly provoke: Provoke
}

const storeDown = () => {
  const { store, broken } = breakableStore()
  broken.add('claim')
  return store
}

/** A store with a clock of the test's own, and one pending record whose owner is gone. */
const abandonedClaim = () => {
  let now = 0
  const store = new MemoryStore({ now: () => now })
  const claim = store.claim.bind(store)
  store.claim = async (request) => {
    const result = await claim(request)
    now += 20_000
    return result
  }
  return store
}

const rows: Row[] = [
  {
    code: 'FST_IDEMPOTENCY_KEY_MISSING',
    status: 400,
    title: 'Idempotency-Key is missing',
    retryable: false,
    safeNewKey: true,
    options: () => ({ required: true }),
    provoke: (app) => post(app, '/pay', undefined),
  },
  {
    code: 'FST_IDEMPOTENCY_KEY_INVALID',
    status: 400,
    title: 'Idempotency-Key is invalid',
    retryable: false,
    safeNewKey: true,
    provoke: (app) => post(app, '/pay', 'a,b'),
  },
  {
    code: 'FST_IDEMPOTENCY_KEY_REUSED',
    status: 422,
    title: 'Idempotency-Key is already used',
    retryable: false,
    safeNewKey: false,
    async provoke(app) {
      await post(app, '/pay', 'k')
      return post(app, '/pay', 'k', { payload: { amount: 200 } })
    },
  },
  {
    code: 'FST_IDEMPOTENCY_IN_PROGRESS',
    status: 409,
    title: 'A request is outstanding for this Idempotency-Key',
    retryable: true,
    safeNewKey: false,
    retryAfter: '30',
    async provoke(app) {
      const first = post(app, '/slow', 'k')
      await until('the first request runs', async () => (await app.inject('/runs')).body === '1')
      const duplicate = await post(app, '/slow', 'k')
      await app.inject('/open')
      await first
      return duplicate
    },
  },
  {
    code: 'FST_IDEMPOTENCY_UNCERTAIN',
    status: 409,
    title: 'The outcome of an earlier attempt is unknown',
    retryable: false,
    safeNewKey: false,
    options: () => ({ store: abandonedClaim(), onLeaseExpired: 'reject', leaseMs: 15_000 }),
    async provoke(app) {
      void post(app, '/hangs', 'k')
      await until('the first request runs', async () => (await app.inject('/runs')).body === '1')
      return post(app, '/hangs', 'k')
    },
  },
  {
    code: 'FST_IDEMPOTENCY_NOT_REPLAYABLE',
    status: 409,
    title: 'The response was not recorded',
    retryable: false,
    safeNewKey: false,
    options: () => ({ maxResponseBytes: 3 }),
    async provoke(app) {
      assert.equal((await post(app, '/pay', 'k')).body, 'paid')
      return post(app, '/pay', 'k')
    },
  },
  {
    code: 'FST_IDEMPOTENCY_STORE_UNAVAILABLE',
    status: 503,
    title: 'Idempotency store unavailable',
    retryable: true,
    safeNewKey: false,
    retryAfter: '1',
    options: () => ({ store: storeDown() }),
    provoke: (app) => post(app, '/pay', 'k'),
  },
]

type CaughtError = { code: string; statusCode: number; retryable: boolean; message: string }

async function appFor(t: TestContext, row: Row, more: IdempotencyOptions = {}, hasErrorHandler = false) {
  const app = await createApp(t, { ...row.options?.(t), ...more })
  if (hasErrorHandler) {
    app.setErrorHandler((error: CaughtError, _request, reply) => {
      const { code, statusCode, retryable, message } = error
      return reply.code(statusCode).send({ custom: true, code, retryable, message })
    })
  }
  const { open, opened } = gate()
  let runs = 0
  app.get('/runs', async () => String(runs))
  app.get('/open', async () => open())
  app.post('/pay', async () => 'paid')
  app.post('/slow', async () => {
    runs++
    await opened
    return 'done'
  })
  app.post('/hangs', () => {
    runs++
  })
  return app
}

describe('answers to requests that do not run', () => {
  for (const row of rows) {
    it(`${row.code}: ${row.status} problem+json`, async (t) => {
      const app = await appFor(t, row)
      const { statusCode, headers, body } = await row.provoke(app)
      assert.equal(statusCode, row.status)
      assert.equal(headers['content-type'], 'application/problem+json')
      assert.equal(headers['retry-after'], row.retryAfter)
      assert.equal(headers['idempotent-replayed'], undefined)
      assert.equal(headers['link'], undefined)
      const { detail, ...members } = JSON.parse(body)
      const { code, status, title, retryable, safeNewKey } = row
      assert.deepEqual(members, { type: 'about:blank', title, status, code, retryable, safeNewKey })
      assert.match(detail, /^[A-Z].+\.$/)
    })

    it(`${row.code}: names the documentation`, async (t) => {
      const app = await appFor(t, row, { documentationUrl: 'https://docs.example.com/idempotency' })
      const { headers, body } = await row.provoke(app)
      assert.equal(JSON.parse(body).type, 'https://docs.example.com/idempotency')
      assert.match(String(headers['link']), /^<https:\/\/docs\.example\.com\/idempotency>; rel="describedby"/)
    })

    it(`${row.code}: rejectWith 'throw' hands it to the app's error handler`, async (t) => {
      const app = await appFor(t, row, { rejectWith: 'throw' }, true)
      const { statusCode, body } = await row.provoke(app)
      const { message, ...rest } = JSON.parse(body)
      assert.equal(statusCode, row.status)
      assert.deepEqual(rest, { custom: true, code: row.code, retryable: row.retryable })
      assert.match(message, /^[A-Z]/)
    })

    it(`${row.code}: rejectWith 'throw' and Fastify's own error handler keep status and Retry-After`, async (t) => {
      const app = await appFor(t, row, { rejectWith: 'throw' })
      const { statusCode, headers, body } = await row.provoke(app)
      assert.equal(statusCode, row.status)
      assert.equal(headers['retry-after'], row.retryAfter)
      assert.equal(JSON.parse(body).code, row.code)
    })
  }

  it('a rejected duplicate does not touch the owner, its record or its answer', async (t) => {
    const { store, calls } = watchedStore()
    const app = await createApp(t, { store })
    const { open, opened } = gate()
    let runs = 0
    app.post('/slow', async () => {
      await opened
      return { run: ++runs }
    })
    const first = post(app, '/slow', 'k')
    await until('the claim is made', () => calls.includes('claim'))
    for (let i = 0; i < 3; i++) assert.equal((await post(app, '/slow', 'k')).statusCode, 409)
    assert.equal((await post(app, '/slow', 'k', { payload: { amount: 7 } })).statusCode, 422)
    assert.deepEqual(calls, ['claim', 'claim', 'claim', 'claim', 'claim'])
    open()
    assert.equal((await first).body, '{"run":1}')
    assert.equal((await post(app, '/slow', 'k')).body, '{"run":1}')
    assert.deepEqual(calls.slice(5), ['complete', 'claim'])
  })

  it('another request with the key is refused whatever has become of the first: running, failed, completed', async (t) => {
    const app = await createApp(t)
    const { open, opened } = gate()
    app.post('/pay', async (request) => {
      if ((request.body as { fail?: boolean }).fail) throw new Error('declined')
      await opened
      return 'paid'
    })
    const reuse = (key: string) => post(app, '/pay', key, { payload: { other: true } })
    const running = post(app, '/pay', 'running')
    assert.equal((await post(app, '/pay', 'failed', { payload: { fail: true } })).statusCode, 500)
    assert.equal((await reuse('running')).statusCode, 422)
    assert.equal((await reuse('failed')).statusCode, 422)
    open()
    await running
    assert.equal((await reuse('running')).statusCode, 422)
  })

  it('reach a real client with a body of known length', async (t) => {
    const app = await createApp(t, { required: true })
    app.post('/pay', async () => 'paid')
    const url = await listen(app)
    const response = await fetch(`${url}/pay`, { method: 'POST' })
    assert.equal(response.status, 400)
    const body = await response.text()
    assert.equal(Number(response.headers.get('content-length')), Buffer.byteLength(body))
  })
})
