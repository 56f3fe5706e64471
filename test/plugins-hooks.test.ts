/** Hooks, serializers and error handlers around a recorded answer: each sees a replay as it saw the first answer. */

import assert from 'node:assert/strict'
import { test } from 'node:test'
import fastify, {
  type FastifyInstance,
  type FastifyReply,
  type FastifyRequest,
  type RouteShorthandOptions,
} from 'fastify'
import idempotency from '../src/index.ts'
import { createApp, post } from './support/app.ts'
import { inBothOrders } from './support/orders.ts'

type Done = (error: Error | null, payload?: unknown) => void

/** Marks a body once for each time it is called. */
function mark(payload: unknown): string | Buffer {
  return Buffer.isBuffer(payload) ? Buffer.concat([payload, Buffer.from('!')]) : `${payload}!`
}

const REWRITERS = {
  async: async (_request: FastifyRequest, _reply: FastifyReply, payload: unknown) => mark(payload),
  callback: (_request: FastifyRequest, _reply: FastifyReply, payload: unknown, done: Done) => done(null, mark(payload)),
  'slow callback': (_request: FastifyRequest, _reply: FastifyReply, payload: unknown, done: Done) =>
    void setImmediate(done, null, mark(payload)),
} as const

const PAYLOADS: Readonly<Record<string, { send: unknown; sent: string }>> = {
  'a string': { send: 'paid', sent: 'paid' },
  'a Buffer': { send: Buffer.from([0xff, 0x00, 0x41]), sent: '\xff\x00A' },
  'an object': { send: { paid: true }, sent: '{"paid":true}' },
}

for (const [style, rewrite] of Object.entries(REWRITERS)) {
  for (const [what, { send, sent }] of Object.entries(PAYLOADS)) {
    inBothOrders(
      `an onSend hook (${style}) rewrites ${what} once in the first answer and once in a replay`,
      (app) => void app.addHook('onSend', rewrite as never),
      async ({ app, run, runs }) => {
        app.post('/payments', async (_request, reply) => {
          run()
          return reply.code(201).send(send)
        })
        for (const replayed of [undefined, 'true', 'true']) {
          const answer = await post(app, '/payments', 'k')
          assert.equal(answer.statusCode, 201)
          assert.equal(answer.headers['idempotent-replayed'], replayed)
          assert.equal(answer.rawPayload.toString('latin1'), `${sent}!`)
          assert.equal(answer.headers['content-length'], String(sent.length + 1))
        }
        assert.equal(runs(), 1)
      },
    )
  }
}

const PLACES: Readonly<Record<string, (app: FastifyInstance, options: RouteShorthandOptions) => Promise<unknown>>> = {
  'of the route': async (app, options) => app.post('/payments', { ...options, onSend: REWRITERS.async }, () => 'paid'),
  'of a child, before the route': async (app, options) =>
    app.register(async (child) => {
      child.addHook('onSend', REWRITERS.async)
      child.post('/payments', options, () => 'paid')
    }),
  'of a child, after the route': async (app, options) =>
    app.register(async (child) => {
      child.post('/payments', options, () => 'paid')
      child.addHook('onSend', REWRITERS.async)
    }),
  'put on the route by an onRoute hook': async (app, options) => {
    app.addHook('onRoute', (route) => void Object.assign(route, { onSend: [REWRITERS.async] }))
    app.post('/payments', options, () => 'paid')
  },
}

for (const [place, addRoute] of Object.entries(PLACES)) {
  test(`an onSend hook ${place} rewrites a replay once`, async (t) => {
    const app = await createApp(t)
    await addRoute(app, {})
    assert.equal((await post(app, '/payments', 'k')).body, 'paid!')
    const replay = await post(app, '/payments', 'k')
    assert.equal(replay.headers['idempotent-replayed'], 'true')
    assert.equal(replay.body, 'paid!')
  })
}

test('an onSend hook of the root, with the plugin in one child: each rewrites once, and the sibling is as before', async (t) => {
  const app = fastify()
  t.after(() => app.close())
  app.addHook('onSend', REWRITERS.async)
  await app.register(async (child) => {
    await child.register(idempotency, { metrics: false })
    child.post('/covered', () => 'paid')
  })
  await app.register(async (sibling) => void sibling.post('/bare', () => 'paid'))
  for (const replayed of [undefined, 'true']) {
    const covered = await post(app, '/covered', 'k')
    assert.equal(covered.headers['idempotent-replayed'], replayed)
    assert.equal(covered.body, 'paid!')
    const bare = await post(app, '/bare', 'k')
    assert.equal(bare.headers['idempotent-replayed'], undefined)
    assert.equal(bare.body, 'paid!')
  }
})

inBothOrders(
  'an onSend hook that turns a string into a Buffer and sets headers does so for the replay as well',
  (app) =>
    void app.addHook('onSend', async (request, reply, payload) => {
      reply.header('x-request', request.id).header('content-type', 'application/octet-stream')
      return Buffer.from(String(payload)).reverse()
    }),
  async ({ app }) => {
    app.post('/payments', async () => 'paid')
    const first = await post(app, '/payments', 'k')
    const replay = await post(app, '/payments', 'k')
    assert.equal(first.body, 'diap')
    assert.equal(replay.body, 'diap')
    assert.equal(replay.headers['content-type'], first.headers['content-type'])
    assert.notEqual(replay.headers['x-request'], first.headers['x-request'])
  },
)

inBothOrders(
  'an onSend hook that stamps its request on a body does so afresh for a replay',
  (app) => void app.addHook('onSend', async ({ id }, _reply, payload) => `${payload} to ${id}`),
  async ({ app, run }) => {
    app.post('/payments', async () => `paid ${run()}`)
    assert.equal((await post(app, '/payments', 'k')).body, 'paid 1 to req-1')
    assert.equal((await post(app, '/payments', 'k')).body, 'paid 1 to req-2')
  },
)

/** An onSend hook that throws for the first answer only. */
function throwingOnce(): (request: FastifyRequest, reply: FastifyReply, payload: unknown) => Promise<unknown> {
  let answers = 0
  return async (_request, _reply, payload) => {
    if (++answers === 1) throw new Error('the audit log is down')
    return payload
  }
}

inBothOrders(
  'an onSend hook that throws once: the client gets 500, its retry the answer that was recorded',
  (app) => void app.addHook('onSend', throwingOnce()),
  async ({ app, run, runs, calls }) => {
    app.post('/payments', async (_request, reply) => reply.code(201).send({ run: run() }))
    assert.equal((await post(app, '/payments', 'k')).statusCode, 500)
    const replay = await post(app, '/payments', 'k')
    assert.equal(replay.statusCode, 201)
    assert.deepEqual(replay.json(), { run: 1 })
    assert.equal(runs(), 1)
    assert.deepEqual(calls, ['claim', 'complete', 'claim'])
  },
)

inBothOrders(
  'an onSend hook that throws in a replay: its 500 does not pass for the recorded answer, the next retry gets that',
  (app) => {
    let answers = 0
    app.addHook('onSend', async (_request, _reply, payload) => {
      if (++answers === 2) throw new Error('the audit log is down')
      return payload
    })
  },
  async ({ app, run, runs }) => {
    app.post('/payments', async (_request, reply) => reply.code(201).header('x-receipt', 'r1').send({ run: run() }))
    await post(app, '/payments', 'k')
    const broken = await post(app, '/payments', 'k')
    assert.equal(broken.statusCode, 500)
    assert.equal(broken.json().message, 'the audit log is down')
    assert.equal(broken.headers['idempotent-replayed'], undefined)
    assert.deepEqual((await post(app, '/payments', 'k')).json(), { run: 1 })
    assert.equal(runs(), 1)
  },
)

inBothOrders(
  'a preSerialization hook that wraps bodies wraps a replay once',
  (app) => void app.addHook('preSerialization', async (_request, _reply, payload) => ({ data: payload })),
  async ({ app, run, runs }) => {
    app.post('/payments', async () => ({ run: run() }))
    assert.deepEqual((await post(app, '/payments', 'k')).json(), { data: { run: 1 } })
    assert.deepEqual((await post(app, '/payments', 'k')).json(), { data: { run: 1 } })
    assert.equal(runs(), 1)
  },
)

inBothOrders(
  'setReplySerializer: a replay is not serialized a second time',
  (app) => void app.setReplySerializer((payload) => `<${JSON.stringify(payload)}>`),
  async ({ app, run }) => {
    app.post('/payments', async (_request, reply) => reply.type('application/vnd.pay+json').send({ run: run() }))
    for (let i = 0; i < 2; i++) {
      const answer = await post(app, '/payments', 'k')
      assert.equal(answer.body, '<{"run":1}>')
      assert.equal(answer.headers['content-type'], 'application/vnd.pay+json; charset=utf-8')
    }
  },
)

inBothOrders(
  'reply.serializer(): a replay is not serialized a second time',
  () => {},
  async ({ app, run }) => {
    app.post('/payments', async (_request, reply) =>
      reply
        .type('application/x-protobuf')
        .serializer((payload: object) => Buffer.from(Object.values(payload)) as never)
        .send({ run: run(), more: 0xff }),
    )
    for (let i = 0; i < 2; i++) assert.deepEqual([...(await post(app, '/payments', 'k')).rawPayload], [1, 0xff])
  },
)

inBothOrders(
  'a response schema filters the first answer; the replay is the same, and a rejection keeps all its members',
  () => {},
  async ({ app, run }) => {
    const response = { '2xx': { type: 'object', properties: { run: { type: 'integer' } } } }
    const problem = { '4xx': { type: 'object', properties: { code: { type: 'string' } } } }
    app.post('/payments', { schema: { response: { ...response, ...problem } } }, async () => ({ run: run(), pin: 1 }))
    assert.equal((await post(app, '/payments', 'k')).body, '{"run":1}')
    assert.equal((await post(app, '/payments', 'k')).body, '{"run":1}')
    const rejected = await post(app, '/payments', 'k', { payload: { amount: 7 } })
    assert.equal(rejected.json().title, 'Idempotency-Key is already used')
  },
)
