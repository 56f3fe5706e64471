/** Errors and not-found answers: who answers them, and what becomes of the key. */

import assert from 'node:assert/strict'
import { test } from 'node:test'
import sensible from '@fastify/sensible'
import fastify, { type FastifyInstance, type FastifyReply, type RouteShorthandOptions } from 'fastify'
import idempotency from '../src/index.ts'
import { createApp, post } from './support/app.ts'
import { inBothOrders } from './support/orders.ts'
import { gate, until, watchedStore } from './support/stores.ts'

const THROWN: readonly { readonly error: 'paymentRequired' | 'conflict' | 'badGateway'; readonly end: string }[] = [
  { error: 'paymentRequired', end: 'fail' },
  { error: 'badGateway', end: 'fail' },
  { error: 'conflict', end: 'release' },
]

for (const { error, end } of THROWN) {
  for (const how of ['thrown', 'sent'] as const) {
    inBothOrders(
      `@fastify/sensible: httpErrors.${error} ${how} by the handler is not replayed, the retry runs`,
      (app) => app.register(sensible),
      async ({ app, run, runs, calls }) => {
        app.post('/payments', async (_request, reply) => {
          if (run() > 1) return { ok: true }
          if (how === 'thrown') throw app.httpErrors[error]('not now')
          return reply[error]('not now')
        })
        const refused = await post(app, '/payments', 'k')
        assert.equal(refused.statusCode, app.httpErrors[error]().statusCode)
        assert.equal(refused.json().message, 'not now')
        assert.deepEqual(calls, ['claim', end])
        assert.deepEqual((await post(app, '/payments', 'k')).json(), { ok: true })
        assert.equal(runs(), 2)
      },
    )
  }
}

inBothOrders(
  'a custom not-found handler: a request for no route never claims',
  (app) => {
    app.setNotFoundHandler({ preHandler: async () => {} }, async (_request, reply) => reply.code(404).send({ no: 1 }))
  },
  async ({ app, calls }) => {
    const answer = await post(app, '/nowhere', 'k')
    assert.equal(answer.statusCode, 404)
    assert.deepEqual(answer.json(), { no: 1 })
    assert.deepEqual(calls, [])
  },
)

for (const style of ['returns reply', 'returns nothing'] as const) {
  inBothOrders(
    `a handler that ${style} after reply.callNotFound(): the custom 404 is recorded and replayed`,
    (app) => {
      app.setNotFoundHandler(async (_request, reply) => reply.code(404).send({ no: 1 }))
    },
    async ({ app, run, runs, calls }) => {
      app.post('/payments', (_request, reply) => {
        run()
        reply.callNotFound()
        return style === 'returns reply' ? Promise.resolve(reply) : undefined
      })
      for (const replayed of [undefined, 'true']) {
        const answer = await post(app, '/payments', 'k')
        assert.equal(answer.statusCode, 404)
        assert.deepEqual(answer.json(), { no: 1 })
        assert.equal(answer.headers['idempotent-replayed'], replayed)
      }
      assert.equal(runs(), 1)
      assert.deepEqual(calls, ['claim', 'complete', 'claim'])
    },
  )

  test(`plugin in a child, a handler that ${style} after reply.callNotFound(): the key does not stay pending`, async (t) => {
    const { store, calls } = watchedStore()
    const app = fastify()
    t.after(() => app.close())
    app.addHook('onSend', async () => void (await new Promise(setImmediate)))
    await app.register(async (scope) => {
      await scope.register(idempotency, { store, metrics: false })
      scope.post('/payments', (_request, reply) => {
        reply.callNotFound()
        return style === 'returns reply' ? Promise.resolve(reply) : undefined
      })
    })
    assert.equal((await post(app, '/payments', 'k')).statusCode, 404)
    await until('the claim ends', () => calls.length === 2)
    assert.notEqual((await post(app, '/payments', 'k')).json().code, 'FST_IDEMPOTENCY_IN_PROGRESS')
  })
}

const problem = (error: Error, reply: FastifyReply) =>
  reply.code(503).send({ code: (error as Error & { code?: string }).code ?? 'none', message: error.message })

const ERROR_HANDLERS: Readonly<Record<string, (app: FastifyInstance) => RouteShorthandOptions>> = {
  'setErrorHandler, async': (app) => {
    app.setErrorHandler(async (error: Error, _request, reply) => problem(error, reply))
    return {}
  },
  'setErrorHandler, callback': (app) => {
    app.setErrorHandler((error: Error, _request, reply) => void setImmediate(problem, error, reply))
    return {}
  },
  'errorHandler of the route': () => ({ errorHandler: (error, _request, reply) => void problem(error, reply) }),
}

for (const [what, install] of Object.entries(ERROR_HANDLERS)) {
  test(`${what}: a thrown error is answered by it, the key is free for the retry`, async (t) => {
    const { store, calls } = watchedStore()
    const app = await createApp(t, { store })
    let runs = 0
    app.post('/payments', install(app), async () => {
      if (++runs === 1) throw new Error('the bank is down')
      return { run: runs }
    })
    const failed = await post(app, '/payments', 'k')
    assert.equal(failed.statusCode, 503)
    assert.equal(failed.json().message, 'the bank is down')
    assert.deepEqual(calls, ['claim', 'fail'])
    assert.deepEqual((await post(app, '/payments', 'k')).json(), { run: 2 })
  })

  test(`${what} with rejectWith: 'throw': it answers rejected requests, and the owner's answer stays`, async (t) => {
    const { store, calls } = watchedStore()
    const app = await createApp(t, { store, rejectWith: 'throw' })
    const finish = gate()
    let runs = 0
    app.post('/payments', install(app), async () => {
      runs++
      await finish.opened
      return { paid: true }
    })
    const first = post(app, '/payments', 'k')
    await until('the handler runs', () => runs === 1)
    const code = async (request: ReturnType<typeof post>) => (await request).json().code
    assert.equal(await code(post(app, '/payments', 'k')), 'FST_IDEMPOTENCY_IN_PROGRESS')
    assert.equal(await code(post(app, '/payments', 'k', { payload: {} })), 'FST_IDEMPOTENCY_KEY_REUSED')
    assert.equal(await code(post(app, '/payments', '')), 'FST_IDEMPOTENCY_KEY_INVALID')
    finish.open()
    assert.deepEqual((await first).json(), { paid: true })
    assert.deepEqual((await post(app, '/payments', 'k')).json(), { paid: true })
    assert.deepEqual(calls, ['claim', 'claim', 'claim', 'complete', 'claim'])
  })
}

test("rejectWith: 'throw' without an error handler: Fastify's own answers, with the status and Retry-After", async (t) => {
  const app = await createApp(t, { rejectWith: 'throw' })
  const finish = gate()
  const started = gate()
  app.post('/payments', async () => {
    started.open()
    await finish.opened
    return { paid: true }
  })
  const first = post(app, '/payments', 'k')
  await started.opened
  const rejected = await post(app, '/payments', 'k')
  assert.equal(rejected.statusCode, 409)
  assert.equal(rejected.headers['retry-after'], '30')
  assert.equal(rejected.json().code, 'FST_IDEMPOTENCY_IN_PROGRESS')
  finish.open()
  await first
})
