/** Whoever is turned away before the handler (not signed in, over a limit) never claims a key. */

import assert from 'node:assert/strict'
import { test } from 'node:test'
import auth from '@fastify/auth'
import cookie from '@fastify/cookie'
import rateLimit, { type RateLimitPluginOptions } from '@fastify/rate-limit'
import session from '@fastify/session'
import type { FastifyReply, FastifyRequest, RouteShorthandOptions } from 'fastify'
import { createApp, post } from './support/app.ts'
import { type BothPlugins, inBothOrders } from './support/orders.ts'
import { gate, until, watchedStore } from './support/stores.ts'

const isSignedIn = (request: FastifyRequest) => request.headers['x-user'] === 'alice'

/** Every way in which a hook may turn a request away. */
const GUARDS = {
  'async, return reply': async (request: FastifyRequest, reply: FastifyReply) => {
    if (!isSignedIn(request)) return reply.code(401).send({ error: 'sign in' })
  },
  'async, send without return': async (request: FastifyRequest, reply: FastifyReply) => {
    if (!isSignedIn(request)) reply.code(401).send({ error: 'sign in' })
  },
  'async, send after a pause': async (request: FastifyRequest, reply: FastifyReply) => {
    await new Promise(setImmediate)
    if (!isSignedIn(request)) reply.code(401).send({ error: 'sign in' })
  },
  'async, throw': async (request: FastifyRequest) => {
    if (!isSignedIn(request)) throw Object.assign(new Error('sign in'), { statusCode: 401 })
  },
  'callback, send without done': (request: FastifyRequest, reply: FastifyReply, done: () => void) => {
    if (isSignedIn(request)) return done()
    reply.code(401).send({ error: 'sign in' })
  },
  'callback, send later without done': (request: FastifyRequest, reply: FastifyReply, done: () => void) => {
    if (isSignedIn(request)) return done()
    setImmediate(() => reply.code(401).send({ error: 'sign in' }))
  },
  'callback, send and done': (request: FastifyRequest, reply: FastifyReply, done: () => void) => {
    if (!isSignedIn(request)) reply.code(401).send({ error: 'sign in' })
    done()
  },
  'callback, done(error)': (request: FastifyRequest, _reply: FastifyReply, done: (error?: Error) => void) => {
    done(isSignedIn(request) ? undefined : Object.assign(new Error('sign in'), { statusCode: 401 }))
  },
} as const

type Guard = (typeof GUARDS)[keyof typeof GUARDS]

/** The same request, turned away, then let in, then turned away although there is an answer to replay. */
async function assertGuarded({ app, calls, runs }: Pick<BothPlugins, 'app' | 'calls' | 'runs'>, url = '/payments') {
  const asAlice = { headers: { 'x-user': 'alice' } }
  assert.equal((await post(app, url, 'k')).statusCode, 401)
  assert.deepEqual(calls, [])
  assert.deepEqual((await post(app, url, 'k', asAlice)).json(), { run: 1 })
  assert.deepEqual(calls, ['claim', 'complete'])
  assert.equal((await post(app, url, 'k')).statusCode, 401)
  assert.deepEqual(calls, ['claim', 'complete'])
  assert.deepEqual((await post(app, url, 'k', asAlice)).json(), { run: 1 })
  assert.equal(runs(), 1)
}

for (const [style, guard] of Object.entries(GUARDS)) {
  for (const hook of ['onRequest', 'preValidation', 'preHandler'] as const) {
    inBothOrders(
      `${hook} hook of the app (${style}): who is turned away never claims`,
      (app) => void app.addHook(hook, guard as Guard & (() => void)),
      async (both) => {
        both.app.post('/payments', async () => ({ run: both.run() }))
        await assertGuarded(both)
      },
    )
  }

  test(`preHandler of the route (${style}): who is turned away never claims`, async (t) => {
    const { store, calls } = watchedStore()
    const app = await createApp(t, { store })
    let runs = 0
    app.post('/payments', { preHandler: guard as never }, async () => ({ run: ++runs }))
    await assertGuarded({ app, calls, runs: () => runs })
  })

  test(`preHandler hook of a child that has the route (${style}): who is turned away never claims`, async (t) => {
    const { store, calls } = watchedStore()
    const app = await createApp(t, { store })
    let runs = 0
    await app.register(async (child) => {
      child.post('/payments', async () => ({ run: ++runs }))
      child.addHook('preHandler', guard as never) // after the route: Fastify runs it all the same
    })
    await assertGuarded({ app, calls, runs: () => runs })
  })

  test(`preHandler that a later onRoute hook puts on the route (${style}): who is turned away never claims`, async (t) => {
    const { store, calls } = watchedStore()
    const app = await createApp(t, { store })
    let runs = 0
    app.addHook('onRoute', (route) => void Object.assign(route, { preHandler: [guard] }))
    app.post('/payments', async () => ({ run: ++runs }))
    await assertGuarded({ app, calls, runs: () => runs })
  })
}

inBothOrders(
  '@fastify/auth: an unauthenticated request never claims',
  (app) => app.register(auth),
  async (both) => {
    const { app, run } = both
    const byHeader = async (request: FastifyRequest) => {
      if (!isSignedIn(request)) throw Object.assign(new Error('sign in'), { statusCode: 401 })
    }
    const byCallback = (_request: FastifyRequest, _reply: FastifyReply, done: (error?: Error) => void) =>
      done(Object.assign(new Error('no certificate'), { statusCode: 401 }))
    app.post('/payments', { preHandler: app.auth([byHeader, byCallback]) }, async () => ({ run: run() }))
    await assertGuarded(both)
  },
)

/**
 * The 401 is on its way through slow onSend hooks when Fastify, which knows no better, goes on to the handler.
 * Without the plugin the handler would run.
 */
async function assertRefusedWhileSending({ app, calls, runs }: BothPlugins): Promise<void> {
  assert.equal((await post(app, '/payments', 'k')).statusCode, 401)
  assert.deepEqual(calls, [])
  assert.equal(runs(), 0)
}

inBothOrders(
  'a preHandler that sends 401 and does not return it, with a slow onSend hook: the request never claims',
  (app) => {
    app.addHook('preHandler', GUARDS['async, send without return'])
    app.addHook('onSend', async () => {
      for (let turn = 0; turn < 20; turn++) await new Promise(setImmediate) // longer than a claim takes
    })
  },
  async (both) => {
    both.app.post('/payments', async () => ({ run: both.run() }))
    await assertRefusedWhileSending(both)
  },
)

inBothOrders(
  'a preHandler that sends 401 and does not return it, while @fastify/session saves: the request never claims',
  async (app) => {
    await app.register(cookie)
    await app.register(session, {
      secret: 'a secret of at least 32 characters',
      store: slowSessions(),
      cookie: { secure: false },
    })
    app.addHook('preHandler', GUARDS['async, send without return'])
  },
  async (both) => {
    both.app.post('/payments', async () => ({ run: both.run() }))
    await assertRefusedWhileSending(both)
  },
)

/** Keeps sessions as Redis would: never in the same tick. */
function slowSessions() {
  const sessions = new Map<string, never>()
  return {
    set: (id: string, value: unknown, done: () => void) => {
      sessions.set(id, value as never)
      setImmediate(done)
    },
    get: (id: string, done: (error: null, value?: never) => void) => setImmediate(() => done(null, sessions.get(id))),
    destroy: (id: string, done: () => void) => {
      sessions.delete(id)
      setImmediate(done)
    },
  }
}

interface Limit {
  readonly what: string
  readonly plugin: RateLimitPluginOptions
  readonly route?: RouteShorthandOptions
}

const LIMITS: readonly Limit[] = [
  { what: 'for every route', plugin: { max: 1, timeWindow: '1 hour' } },
  { what: "for every route, hook: 'preHandler'", plugin: { max: 1, timeWindow: '1 hour', hook: 'preHandler' } },
  {
    what: 'in the config of the route',
    plugin: { global: false },
    route: { config: { rateLimit: { max: 1, timeWindow: '1 hour' } } },
  },
  {
    what: "in the config of the route, hook: 'preHandler'",
    plugin: { global: false, hook: 'preHandler' },
    route: { config: { rateLimit: { max: 1, timeWindow: '1 hour' }, idempotency: { required: true } } },
  },
]

for (const { what, plugin, route } of LIMITS) {
  inBothOrders(
    `@fastify/rate-limit ${what}: its 429 leaves the store untouched, and is nobody's recorded answer`,
    (app) => app.register(rateLimit, plugin),
    async ({ app, run, runs, calls }) => {
      app.post('/payments', route ?? {}, async () => ({ run: run() }))
      const from = (remoteAddress: string, key: string) => post(app, '/payments', key, { remoteAddress })
      assert.equal((await from('10.0.0.1', 'k1')).statusCode, 200)
      const limited = await from('10.0.0.1', 'k2')
      assert.equal(limited.statusCode, 429)
      assert.equal(limited.headers['x-ratelimit-remaining'], '0')
      assert.ok(Number(limited.headers['retry-after']) > 0)
      assert.equal((await from('10.0.0.1', 'k1')).statusCode, 429) // a retry counts as well
      assert.deepEqual(calls, ['claim', 'complete'])
      assert.deepEqual((await from('10.0.0.2', 'k2')).json(), { run: 2 })
      assert.equal((await from('10.0.0.3', 'k2')).headers['x-ratelimit-remaining'], '0')
      assert.equal(runs(), 2)
    },
  )
}

inBothOrders(
  '@fastify/rate-limit: a retry that is over the limit does not disturb the first request, which still runs',
  (app) => app.register(rateLimit, { max: 1, timeWindow: '1 hour' }),
  async ({ app, run, runs, calls }) => {
    const finish = gate()
    app.post('/payments', async () => {
      const own = run()
      await finish.opened
      return { run: own }
    })
    const first = post(app, '/payments', 'k')
    await until('the handler runs', () => runs() === 1)
    assert.equal((await post(app, '/payments', 'k')).statusCode, 429)
    finish.open()
    assert.deepEqual((await first).json(), { run: 1 })
    assert.deepEqual(calls, ['claim', 'complete'])
  },
)

test("a route's schema refuses a body before the key is claimed, and the mended request may use the key", async (t) => {
  const { store, calls } = watchedStore()
  const app = await createApp(t, { store })
  const body = { type: 'object', required: ['amount'], properties: { amount: { type: 'integer' } } }
  app.post('/payments', { schema: { body } }, async () => ({ ok: true }))
  assert.equal((await post(app, '/payments', 'k', { payload: {} })).statusCode, 400)
  assert.deepEqual(calls, [])
  assert.equal((await post(app, '/payments', 'k')).statusCode, 200)
})
