/** Values, headers and statuses: a retry gets what the first request got, byte for byte. */

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { gzipSync } from 'node:zlib'
import { assertReplayed, assertReplayOf, linesOf, type ReplyCase, remoteStore, serveCase } from './support/replies.ts'

const everyByte = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte))
const paymentSchema = { type: 'object', properties: { id: { type: 'string' } } }

/** Name of what a retry gets → the case. Each is compared with bare Fastify, then with two replays. */
const replayed: Record<string, ReplyCase> = {
  'an object': { handler: async () => ({ id: 'p-1', amount: 100, note: 'żółć ✓' }) },
  'an array': { handler: async () => [1, 'two', null] },
  'an object sent callback-style': { handler: (_, reply) => void reply.code(201).send({ id: 'p-1' }) },
  'an object sent from a timer': {
    handler: (_, reply) => void setImmediate(() => reply.code(201).header('x-run', '1').send({ id: 'p-1' })),
  },
  'an object from a plain function': { handler: () => ({ id: 'p-1' }) },
  'what `return reply.send()` sent': { handler: async (_, reply) => reply.code(201).send({ id: 'p-1' }) },
  'what a plain function returned from reply.send()': { handler: (_, reply) => reply.code(201).send({ id: 'p-1' }) },
  'a string': { handler: async () => 'paid — żółć ✓' },
  'a string that is half a surrogate pair': { handler: async () => 'x\ud83d' },
  'an empty string': { handler: async () => '' },
  'the number 0': { handler: async (_, reply) => reply.send(0) },
  'a number of JSON': { handler: async (_, reply) => reply.type('application/json').send(12.5) },
  false: { handler: async (_, reply) => reply.send(false) },
  null: { handler: async () => null },
  'null of JSON': { handler: async (_, reply) => reply.type('application/json').send(null) },
  nothing: { handler: async () => undefined },
  'nothing, sent callback-style': { handler: (_, reply) => void reply.send() },
  'falsy values through a serializer of the reply': {
    handler: async (_, reply) => reply.serializer((value: unknown) => `<${value}>`).send(0),
  },
  'a Buffer that a serializer of the reply made': {
    handler: async (_, reply) => {
      reply.type('application/x-protobuf').serializer(() => everyByte as never)
      return { id: 'p-1' }
    },
  },
  'an empty string that a serializer of the reply made': {
    handler: async (_, reply) => reply.serializer(() => '').send({ id: 'p-1' }),
  },
  'what a response schema lets through': {
    route: { schema: { response: { '2xx': paymentSchema } } },
    handler: async () => ({ id: 7, secret: 'not in the schema' }),
  },
  'what a preSerialization hook made of it': {
    prepare: (app) => app.addHook('preSerialization', async (_, __, payload) => ({ wrapped: payload })),
    handler: async (_, reply) => reply.send({ id: 'p-1' }),
  },
  'what a serializer of the instance made of it': {
    prepare: (app) => void app.setReplySerializer((payload, status) => `${status} ${JSON.stringify(payload)}`),
    handler: async () => ({ id: 'p-1' }),
  },
  'a Buffer': { handler: async () => everyByte },
  'an empty Buffer': { handler: async () => Buffer.alloc(0) },
  'a Buffer with a type': { handler: async (_, reply) => reply.type('image/png').send(everyByte) },
  'a Buffer with a text type without charset': { handler: async (_, reply) => reply.type('text/csv').send(everyByte) },
  'a TypedArray': { handler: async () => new Uint16Array([1, 2, 65_535]) },
  'a part of a larger ArrayBuffer': { handler: async () => new Uint8Array(new Uint8Array(everyByte).buffer, 10, 5) },
  'a 201 with Location': { handler: async (_, reply) => reply.code(201).header('location', '/p/1').send({ id: 1 }) },
  'a 204': { handler: async (_, reply) => reply.code(204).send() },
  'a 204 that had a body': { handler: async (_, reply) => reply.code(204).send({ dropped: true }) },
  'a 304': { handler: async (_, reply) => reply.code(304).header('etag', '"1"').send() },
  'a 304 that had a body': { handler: async (_, reply) => reply.code(304).send('dropped') },
  'a redirect': { handler: async (_, reply) => reply.redirect('https://shop.example/paid?id=1', 303) },
  'a redirect, callback-style': { handler: (_, reply) => void reply.redirect('/paid') },
  'a 402 of the handler': { handler: async (_, reply) => reply.code(402).send({ reason: 'card declined' }) },
  'a 404 of the handler': { handler: async (_, reply) => reply.code(404).send({ reason: 'no such account' }) },
  'a 422 of the handler': { handler: async (_, reply) => reply.code(422).send({ reason: 'negative amount' }) },
  'a 404 by reply.callNotFound()': { handler: async (_, reply) => reply.callNotFound() },
  'a 404 by reply.callNotFound(), callback-style': { handler: (_, reply) => void reply.callNotFound() },
  'the 404 of a custom not-found handler': {
    prepare: (app) => app.setNotFoundHandler((_, reply) => void reply.code(404).header('x-by', 'us').send('nowhere')),
    handler: async (_, reply) => reply.callNotFound(),
  },
  'content-type without charset': { handler: async (_, reply) => reply.type('text/plain').send('x') },
  'content-type with a charset': {
    handler: async (_, reply) => reply.type('text/plain; charset=iso-8859-2').send('x'),
  },
  'content-type of JSON in its own spelling': {
    handler: async (_, reply) => reply.type('Application/Problem+JSON; Charset=UTF-8').send({ a: 1 }),
  },
  'content-type of JSON, a string': {
    handler: async (_, reply) => reply.type('application/json').send('{"a":  1}'),
  },
  'repeated headers': {
    handler: async (_, reply) => reply.header('link', ['</a>; rel="a"', '</b>; rel="b"']).send('x'),
  },
  'a repeated header with one value': { handler: async (_, reply) => reply.header('link', ['</a>']).send('x') },
  'numbers and empty values as headers': {
    handler: async (_, reply) => reply.headers({ 'x-count': 0, 'x-empty': '' }).send('x'),
  },
  'headers set on the raw response': {
    handler: async (_, reply) => {
      reply.raw.setHeader('X-Raw', ['1', '2'])
      return 'x'
    },
  },
  'header bytes above 0x7f': { handler: async (_, reply) => reply.header('x-name', 'é').send('x') },
  'a body compressed by the handler': {
    handler: async (_, reply) => reply.header('content-encoding', 'gzip').type('text/plain').send(gzipSync('paid')),
  },
  'a header that a hook appended to': {
    prepare: (app) => app.addHook('onRequest', async (_, reply) => void reply.header('vary', 'Origin')),
    handler: async (_, reply) => reply.header('vary', `${reply.getHeader('vary')}, Accept`).send('x'),
  },
  'no header that the handler had removed': {
    prepare: (app) => app.addHook('onRequest', async (_, reply) => void reply.header('x-frame-options', 'DENY')),
    handler: async (_, reply) => reply.removeHeader('x-frame-options').send('x'),
  },
}

for (const [what, replyCase] of Object.entries(replayed)) {
  test(`a retry gets ${what}, as the first request did`, async (t) => {
    await assertReplayed(t, replyCase)
  })
}

test('a repeated header keeps its lines, and a cookie is not handed to whoever retries', async (t) => {
  const { post, counter } = await serveCase(t, {
    handler: async (_, reply) =>
      reply.header('link', ['</a>', '</b>']).header('set-cookie', 'a=1').header('set-cookie', 'b=2').send('x'),
  })
  const first = await post()
  const again = await post()
  assert.deepEqual(linesOf(again, 'link'), ['link: </a>', 'link: </b>'])
  assert.deepEqual(linesOf(first, 'set-cookie'), ['set-cookie: a=1', 'set-cookie: b=2'])
  assert.deepEqual(linesOf(again, 'set-cookie'), [])
  assert.equal(counter.runs, 1)
})

test('a buffer that the handler uses again for the next request does not change what was recorded', async (t) => {
  const scratch = Buffer.alloc(7)
  let next = 0
  const { post } = await serveCase(t, {
    handler: async (_, reply) => {
      scratch.write(`card ${++next}`)
      return reply.send(scratch)
    },
  })
  const first = await post('k-1')
  await post('k-2')
  assertReplayOf(first, await post('k-1'))
})

test('what is done to the reply after reply.send is in neither answer', async (t) => {
  await assertReplayed(t, {
    options: { store: remoteStore() },
    handler: (_, reply) => {
      reply.send({ id: 'p-1' })
      reply.code(202).header('x-late', '1')
    },
  })
})
