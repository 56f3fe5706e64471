/** Headers and cookies that other plugins set for each request: fresh on a replay, never the stored ones. */

import assert from 'node:assert/strict'
import { test } from 'node:test'
import cookie from '@fastify/cookie'
import cors from '@fastify/cors'
import helmet from '@fastify/helmet'
import rateLimit from '@fastify/rate-limit'
import session from '@fastify/session'
import type { FastifyInstance } from 'fastify'
import { createApp, listen, post } from './support/app.ts'
import { inBothOrders } from './support/orders.ts'
import { rawRequest } from './support/socket.ts'

declare module 'fastify' {
  interface Session {
    payments?: number
  }
}

function payFrom(app: FastifyInstance, origin: string) {
  return post(app, '/payments', 'k', { headers: { origin } })
}

const SHOP = 'https://shop.example'
const ADMIN = 'https://admin.example'

inBothOrders(
  '@fastify/cors: a replay for another Origin carries the header of that Origin',
  (app) => app.register(cors, { origin: [SHOP, ADMIN], credentials: true, exposedHeaders: ['idempotent-replayed'] }),
  async ({ app, run, runs }) => {
    app.post('/payments', async () => ({ run: run() }))
    const first = await payFrom(app, SHOP)
    assert.equal(first.headers['access-control-allow-origin'], SHOP)
    const replay = await payFrom(app, ADMIN)
    assert.equal(replay.headers['idempotent-replayed'], 'true')
    assert.equal(replay.headers['access-control-allow-origin'], ADMIN)
    assert.equal(replay.headers.vary, first.headers.vary)
    assert.equal(runs(), 1)
  },
)

inBothOrders(
  '@fastify/cors: a replay for an Origin that is not allowed does not allow it',
  (app) => app.register(cors, { origin: [SHOP, ADMIN] }),
  async ({ app, run }) => {
    app.post('/payments', async () => ({ run: run() }))
    await payFrom(app, SHOP)
    const replay = await payFrom(app, 'https://evil.example')
    assert.equal(replay.headers['idempotent-replayed'], 'true')
    assert.equal(replay.headers['access-control-allow-origin'], undefined)
  },
)

inBothOrders(
  '@fastify/cors: a preflight request with a key in it never reaches the store',
  (app) => app.register(cors, { origin: SHOP }),
  async ({ app, run, calls }) => {
    app.post('/payments', async () => ({ run: run() }))
    const headers = {
      origin: SHOP,
      'access-control-request-method': 'POST',
      'access-control-request-headers': 'idempotency-key',
      'idempotency-key': 'k',
    }
    const preflight = await app.inject({ method: 'OPTIONS', url: '/payments', headers })
    assert.equal(preflight.statusCode, 204)
    assert.deepEqual(calls, [])
  },
)

inBothOrders(
  '@fastify/cors: a handler that adds to Vary does not freeze the Origin of the first request',
  (app) => app.register(cors, { origin: [SHOP, ADMIN] }),
  async ({ app, run }) => {
    app.post('/payments', async (_request, reply) => {
      reply.header('vary', `${reply.getHeader('vary')}, Accept-Language`)
      return { run: run() }
    })
    assert.equal((await payFrom(app, SHOP)).headers.vary, 'Origin, Accept-Language')
    const replay = await payFrom(app, ADMIN)
    assert.equal(replay.headers.vary, 'Origin, Accept-Language')
    assert.equal(replay.headers['access-control-allow-origin'], ADMIN)
  },
)

inBothOrders(
  '@fastify/helmet: a replay has every security header, and a CSP nonce of its own',
  (app) => app.register(helmet, { enableCSPNonces: true }),
  async ({ app, run, runs }) => {
    const nonces: string[] = []
    app.addHook('onRequest', async (_request, reply) => void nonces.push(reply.cspNonce.script))
    app.post('/payments', async () => ({ run: run() }))
    const first = await post(app, '/payments', 'k')
    const replay = await post(app, '/payments', 'k')
    assert.equal(replay.headers['idempotent-replayed'], 'true')
    assert.notEqual(nonces[0], nonces[1])
    assert.match(String(first.headers['content-security-policy']), new RegExp(`'nonce-${nonces[0]}'`))
    assert.match(String(replay.headers['content-security-policy']), new RegExp(`'nonce-${nonces[1]}'`))
    assert.doesNotMatch(String(replay.headers['content-security-policy']), new RegExp(String(nonces[0])))
    assert.equal(replay.headers['strict-transport-security'], first.headers['strict-transport-security'])
    assert.equal(replay.headers['x-frame-options'], 'SAMEORIGIN')
    assert.equal(runs(), 1)
  },
)

inBothOrders(
  '@fastify/helmet: rejected retries have the security headers too',
  (app) => app.register(helmet),
  async ({ app, run }) => {
    app.post('/payments', async () => ({ run: run() }))
    await post(app, '/payments', 'k')
    const rejected = await post(app, '/payments', 'k', { payload: { amount: 7 } })
    assert.equal(rejected.statusCode, 422)
    assert.equal(rejected.headers['x-frame-options'], 'SAMEORIGIN')
    assert.match(String(rejected.headers['content-type']), /^application\/problem\+json/)
  },
)

inBothOrders(
  "@fastify/cookie: the first answer sets both of the handler's cookies, a replay sets neither",
  (app) => app.register(cookie),
  async ({ app, run, runs }) => {
    app.post('/payments', async (_request, reply) => {
      run()
      return reply.setCookie('sid', 'secret').setCookie('theme', 'dark').send({ ok: true })
    })
    const first = await post(app, '/payments', 'k')
    assert.deepEqual(
      first.cookies.map(({ name, value }) => [name, value]),
      [
        ['sid', 'secret'],
        ['theme', 'dark'],
      ],
    )
    const replay = await post(app, '/payments', 'k')
    assert.equal(replay.headers['idempotent-replayed'], 'true')
    assert.equal(replay.headers['set-cookie'], undefined)
    assert.equal(runs(), 1)
  },
)

inBothOrders(
  '@fastify/cookie: two cookies are two header lines on the wire, and stay with the caller who got them',
  (app) => app.register(cookie),
  async ({ app, run }) => {
    app.post('/payments', async (_request, reply) => {
      run()
      reply.header('set-cookie', 'raw=1')
      return reply.setCookie('signed-in', 'yes').send({ ok: true })
    })
    const url = await listen(app)
    const lines = ['Idempotency-Key: k', 'Content-Type: application/json']
    const send = async () => {
      const { headers } = await rawRequest(url, 'POST /payments', lines, '{"amount":100}')
      return headers.filter(([name]) => name.toLowerCase() === 'set-cookie').map(([, value]) => value)
    }
    assert.deepEqual(await send(), ['raw=1', 'signed-in=yes; SameSite=Lax'])
    assert.deepEqual(await send(), [])
  },
)

inBothOrders(
  '@fastify/cookie: a cookie that a hook sets for each request is fresh on a replay, next to none of the stored ones',
  (app) => app.register(cookie),
  async ({ app, run }) => {
    let requests = 0
    app.addHook('onRequest', async (_request, reply) => void reply.setCookie('request', String(++requests)))
    app.post('/payments', async (_request, reply) => {
      run()
      return reply.setCookie('sid', 'secret').send({ ok: true })
    })
    const names = async () => (await post(app, '/payments', 'k')).cookies.map(({ name, value }) => `${name}=${value}`)
    assert.deepEqual(await names(), ['request=1', 'sid=secret'])
    assert.deepEqual(await names(), ['request=2'])
  },
)

inBothOrders(
  '@fastify/session: a retry keeps its session, the handler has changed it once, nobody gets the first cookie again',
  async (app) => {
    await app.register(cookie)
    await app.register(session, { secret: 'a secret of at least 32 characters', cookie: { secure: false } })
  },
  async ({ app, run, runs, calls }) => {
    app.post('/payments', async (request) => {
      request.session.payments = (request.session.payments ?? 0) + 1
      return { run: run() }
    })
    app.get('/session', async (request) => ({ payments: request.session.payments }))
    const first = await post(app, '/payments', 'k')
    const sessionId = first.cookies.find(({ name }) => name === 'sessionId')?.value ?? ''
    assert.notEqual(sessionId, '')

    const replay = await post(app, '/payments', 'k', { cookies: { sessionId } })
    assert.equal(replay.headers['idempotent-replayed'], 'true')
    assert.equal(replay.body, first.body)
    const mine = await app.inject({ url: '/session', cookies: { sessionId } })
    assert.deepEqual(mine.json(), { payments: 1 })

    const stranger = await post(app, '/payments', 'k')
    assert.notEqual(stranger.cookies.find(({ name }) => name === 'sessionId')?.value, sessionId)
    assert.equal(runs(), 1)
    assert.deepEqual(calls, ['claim', 'complete', 'claim', 'claim'])
  },
)

inBothOrders(
  '@fastify/session: with the session as credential one user never gets the answer of another',
  async (app) => {
    await app.register(cookie)
    await app.register(session, { secret: 'a secret of at least 32 characters', cookie: { secure: false } })
  },
  async ({ app, run, runs }) => {
    app.post('/payments', async () => ({ run: run() }))
    const first = await post(app, '/payments', 'k')
    const sessionId = first.cookies.find(({ name }) => name === 'sessionId')?.value ?? ''
    assert.deepEqual((await post(app, '/payments', 'k')).json(), { run: 2 })
    assert.deepEqual((await post(app, '/payments', 'k', { cookies: { sessionId } })).json(), { run: 1 })
    assert.equal(runs(), 2)
  },
  { idempotency: { credential: (request) => request.session.sessionId } },
)

for (const hook of ['onRequest', 'preHandler'] as const) {
  inBothOrders(
    `@fastify/rate-limit in ${hook}: a replay has the numbers of its own request`,
    (app) => app.register(rateLimit, { max: 5, timeWindow: '1 hour', hook }),
    async ({ app, run, runs }) => {
      app.post('/payments', async () => ({ run: run() }))
      const remaining: unknown[] = []
      for (let i = 0; i < 3; i++) remaining.push((await post(app, '/payments', 'k')).headers['x-ratelimit-remaining'])
      assert.deepEqual(remaining, ['4', '3', '2'])
      assert.equal(runs(), 1)
    },
  )
}

test('a header that an onRequest hook gave and the handler replaced comes back as the handler left it', async (t) => {
  const app = await createApp(t)
  app.addHook('onRequest', async (request, reply) => void reply.header('x-a', request.id).header('x-b', 'hook'))
  app.post('/payments', async (_request, reply) => reply.header('x-b', 'handler').send({ ok: true }))
  const first = await post(app, '/payments', 'k')
  const replay = await post(app, '/payments', 'k')
  assert.notEqual(replay.headers['x-a'], first.headers['x-a'])
  assert.equal(replay.headers['x-b'], 'handler')
})
