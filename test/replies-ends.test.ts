/** Errors, statuses, and replies that are too large or cannot be sent: completed, run again, or honestly refused. */

import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { FastifyReply } from 'fastify'
import {
  assertNotReplayable,
  assertReplayed,
  assertReplayOf,
  bareAnswer,
  linesOf,
  type ReplyCase,
  serveCase,
} from './support/replies.ts'
import { watchedStore } from './support/stores.ts'

// Ends after which the next request runs: the record is failed or released, and nothing of it is replayed.
const fail = (): never => {
  throw new Error('boom')
}
const runAgain: Record<string, ReplyCase & { status: number }> = {
  'an error thrown by an async handler': { status: 500, handler: async () => fail() },
  'an error thrown by a plain function': { status: 500, handler: () => fail() },
  'an error given to reply.send': { status: 500, handler: (_, reply) => void reply.send(new Error('boom')) },
  'an error given to reply.send from a timer': {
    status: 500,
    handler: (_, reply) => void setImmediate(() => reply.send(new Error('boom'))),
  },
  'an error that was returned': { status: 500, handler: async () => new Error('boom') },
  'something thrown that is no error': { status: 500, handler: () => Promise.reject('boom') },
  'nothing at all thrown': { status: 500, handler: () => Promise.reject(undefined) },
  'an error with a status of its own': {
    status: 402,
    handler: () => Promise.reject(Object.assign(new Error('boom'), { statusCode: 402 })),
  },
  'a 503 of the handler': { status: 503, handler: async (_, reply) => reply.code(503).send({ later: true }) },
  'a payload that Fastify cannot send': {
    status: 500,
    handler: async (_, reply) => reply.type('text/plain').send({ not: 'a string' }),
  },
  'an object that JSON cannot express': { status: 500, handler: async () => ({ big: 1n }) },
  'a response that its schema refuses': {
    status: 500,
    route: {
      schema: { response: { 200: { type: 'object', properties: { id: { type: 'string' } }, required: ['id'] } } },
    },
    handler: async () => ({}),
  },
  'a preSerialization hook that fails': {
    status: 500,
    prepare: (app) => app.addHook('preSerialization', async () => fail()),
    handler: async () => ({ id: 1 }),
  },
  'an error that a custom handler answers': {
    status: 418,
    prepare: (app) => app.setErrorHandler((_, __, reply) => void reply.code(418).type('text/x-tea').send('tea')),
    handler: async () => fail(),
  },
  'an error that an async custom handler answers': {
    status: 503,
    prepare: (app) =>
      app.setErrorHandler(async (_, __, reply) => {
        reply.code(503)
        return { tea: true }
      }),
    handler: async () => fail(),
  },
  'an error that a custom handler makes a 409 of': {
    status: 409,
    prepare: (app) => app.setErrorHandler((_, __, reply) => void reply.code(409).send({ busy: true })),
    handler: async () => fail(),
  },
  'an error whose custom handler throws': {
    status: 500,
    prepare: (app) => app.setErrorHandler(() => fail()),
    handler: async () => fail(),
  },
  'an error that a custom handler answers through the raw response': {
    status: 500,
    prepare: (app) =>
      app.setErrorHandler((_, __, reply) => {
        reply.hijack()
        reply.raw.writeHead(500).end('raw')
      }),
    handler: async () => fail(),
  },
}
for (const status of [401, 403, 408, 409, 425, 429]) {
  const answer = (reply: FastifyReply) => reply.code(status).header('retry-after', '1').send({ status })
  runAgain[`a ${status} of the handler`] = { status, handler: async (_, reply) => answer(reply) }
  runAgain[`a ${status} of a callback-style handler`] = { status, handler: (_, reply) => void answer(reply) }
}

for (const [what, { status, ...replyCase }] of Object.entries(runAgain)) {
  test(`${what} reaches the client as without the plugin, and the next retry runs`, async (t) => {
    const { handler } = replyCase
    let isFixed = false
    const { counter, post, settled } = await serveCase(t, {
      ...replyCase,
      handler(request, reply) {
        return isFixed ? reply.code(204).send() : handler.call(this, request, reply)
      },
    })
    for (const attempt of [1, 2]) {
      const answer = await post()
      assert.equal(answer.statusCode, status, answer.body.toString())
      assert.deepEqual(linesOf(answer, 'idempotent-replayed'), [])
      await settled()
      assert.equal(counter.runs, attempt)
    }
    isFixed = true
    const done = await post()
    assert.equal(done.statusCode, 204)
    assertReplayOf(done, await post())
    assert.equal(counter.runs, 3)
  })
}

const recordedErrors: Record<string, ReplyCase> = {
  'a thrown error': { handler: async () => fail() },
  'an error given to reply.send': { handler: (_, reply) => void reply.send(new Error('boom')) },
  'a custom answer to an error': {
    prepare: (app) =>
      app.setErrorHandler((error: Error, _, reply) => void reply.code(502).type('text/x-tea').send(error.message)),
    handler: async () => fail(),
  },
  'a 409 of the handler': { handler: async (_, reply) => reply.code(409).send({ seat: 'taken' }) },
}
for (const [what, replyCase] of Object.entries(recordedErrors)) {
  test(`with outcome: () => 'complete' a retry gets ${what} as the first request did`, async (t) => {
    await assertReplayed(t, { ...replyCase, options: { outcome: () => 'complete' } })
  })
}

test('a header value that Node refuses is a 500, as without the plugin, and no crash', async (t) => {
  const replyCase: ReplyCase = {
    handler: async (_, reply) => reply.header('content-disposition', 'attachment; filename="żółć.pdf"').send('x'),
  }
  const { post, settled } = await serveCase(t, replyCase)
  const bare = await bareAnswer(t, replyCase)
  const first = await post()
  assert.equal(bare.statusCode, 500)
  assert.equal(first.statusCode, bare.statusCode)
  assert.deepEqual(first.body, bare.body)
  await settled()
  const again = await post()
  assert.ok([409, 500].includes(again.statusCode), `an honest answer, not ${again.statusCode}`)
})

const toXml: ReplyCase['prepare'] = (app) =>
  app.addHook('onSend', async (_, __, payload) => {
    const isOurs = typeof payload === 'object' && payload !== null && 'id' in payload
    return isOurs ? `<paid id="${payload.id}"/>` : payload
  })
const xmlHandlers: Record<string, ReplyCase['handler']> = {
  returned: async (_, reply) => {
    reply.type('application/xml')
    return { id: 'p-1' }
  },
  sent: (_, reply) => void reply.type('application/xml').send({ id: 'p-1' }),
}
for (const [how, handler] of Object.entries(xmlHandlers)) {
  test(`an object that was ${how} and that an onSend hook makes XML of is replayed, or honestly not`, async (t) => {
    const { counter, post, settled } = await serveCase(t, { prepare: toXml, handler })
    const first = await post()
    assert.equal(first.body.toString(), '<paid id="p-1"/>')
    await settled()
    const again = await post()
    if (again.statusCode === 409) assertNotReplayable(again)
    else assertReplayOf(first, again)
    assert.equal(counter.runs, 1)
  })
}

const cap = 64
const sizes = { 'a string': 'é'.repeat(cap / 2), 'a Buffer': Buffer.alloc(cap, 0xff) }
for (const [kind, full] of Object.entries(sizes)) {
  test(`${kind} of exactly maxResponseBytes is replayed`, async (t) => {
    await assertReplayed(t, { options: { maxResponseBytes: cap }, handler: async () => full })
  })

  test(`${kind} over maxResponseBytes is sent whole; a retry is told, not given a second payment`, async (t) => {
    const larger = typeof full === 'string' ? `${full}.` : Buffer.concat([full, full])
    const { counter, post } = await serveCase(t, {
      options: { maxResponseBytes: cap },
      handler: async (_, reply) => reply.code(201).send(larger),
    })
    const first = await post()
    assert.equal(first.statusCode, 201)
    assert.deepEqual(first.body, Buffer.from(larger as string))
    assertNotReplayable(await post())
    assertNotReplayable(await post())
    assert.equal(counter.runs, 1)
  })
}

test('an empty reply is replayed even where maxResponseBytes is 0', async (t) => {
  await assertReplayed(t, { options: { maxResponseBytes: 0 }, handler: async (_, reply) => reply.code(202).send() })
})

test('a GET and its automatic HEAD are as they were: run each time, the store never asked', async (t) => {
  const { store, calls } = watchedStore()
  const methods: string[] = []
  const { app } = await serveCase(t, {
    options: { store, required: true },
    prepare: (app) => {
      app.get('/payments', async (request) => {
        methods.push(request.method)
        return { seen: methods.length }
      })
      app.route({ method: ['GET', 'POST'], url: '/both', handler: async (request) => request.method })
    },
    handler: async () => 'x',
  })
  const headers = { 'idempotency-key': 'k-1' }
  for (const method of ['GET', 'HEAD', 'GET', 'HEAD'] as const) {
    const answer = await app.inject({ method, url: '/payments', headers })
    assert.equal(answer.statusCode, 200)
    assert.equal(answer.headers['idempotent-replayed'], undefined)
    assert.equal(answer.body, method === 'HEAD' ? '' : `{"seen":${methods.length}}`)
    assert.equal((await app.inject({ method, url: '/both', headers })).body, method === 'HEAD' ? '' : 'GET')
  }
  assert.deepEqual(methods, ['GET', 'HEAD', 'GET', 'HEAD'])
  assert.deepEqual(calls, [])
})
