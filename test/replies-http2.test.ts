/** HTTP/2 over clear text: other classes under Fastify's request and reply, and header rules of its own. */

import assert from 'node:assert/strict'
import { once } from 'node:events'
import { connect } from 'node:http2'
import { Readable } from 'node:stream'
import { type TestContext, test } from 'node:test'
import fastify from 'fastify'
import idempotency, { MemoryStore } from '../src/index.ts'
import { listen } from './support/app.ts'
import {
  type Answer,
  assertNotReplayable,
  assertReplayOf,
  departure,
  linesOf,
  type ReplyCase,
} from './support/replies.ts'
import { until } from './support/stores.ts'

const overHttp2: Record<string, ReplyCase['handler']> = {
  'an object': async (_, reply) => reply.code(201).header('link', ['</a>', '</b>']).send({ id: 'ż' }),
  'an object sent callback-style': (_, reply) => void reply.code(201).send({ id: 'p-1' }),
  'a large Buffer': async () => Buffer.alloc(200_000, 'x'),
  'a stream': async (_, reply) => reply.type('image/png').send(Readable.from([Buffer.from([0, 255]), 'b'])),
  'a web Response': async () => new Response('paid', { status: 202, headers: { 'x-a': '1' } }),
  'a 204': async (_, reply) => reply.code(204).send(),
  'reply.send(a) and return b': async (_, reply) => {
    reply.send('a')
    return 'b'
  },
}
for (const [what, handler] of Object.entries(overHttp2)) {
  test(`over HTTP/2 a retry gets ${what}, as the first request did`, async (t) => {
    const { post, counter } = await serveHttp2(t, handler)
    const first = await post()
    const again = await post()
    assertReplayOf(first, again)
    assert.ok(first.statusCode < 300, first.body.toString())
    assert.equal(counter.runs, 1)
  })
}

for (const [what, handler] of Object.entries<ReplyCase['handler']>({
  'reply.raw.end()': (_, reply) => void reply.raw.end('raw'),
  'hijack and raw.end()': async (_, reply) => void reply.hijack().raw.end('raw'),
  'server-sent events': async (_, reply) => reply.type('text/event-stream').send(Readable.from(['raw'])),
})) {
  test(`over HTTP/2 ${what}: a retry is told, not given a second payment`, async (t) => {
    const { post, counter, settled } = await serveHttp2(t, handler)
    assert.equal((await post()).body.toString(), 'raw')
    await settled()
    assertNotReplayable(await post())
    assert.equal(counter.runs, 1)
  })
}

test('over HTTP/2 a cancelled request gets its complete answer on the retry', async (t) => {
  const { entered, closed, wait } = departure()
  const { post, counter, settled, open } = await serveHttp2(t, async (_, reply) => {
    await wait(reply)
    return { id: 'p-1' }
  })
  const stream = open()
  await entered.opened
  stream.close(8) // NGHTTP2_CANCEL
  await closed.opened
  await settled()
  const again = await post()
  assert.equal(again.body.toString(), '{"id":"p-1"}')
  assert.deepEqual(linesOf(again, 'idempotent-replayed'), ['idempotent-replayed: true'])
  assert.equal(counter.runs, 1)
})

async function serveHttp2(t: TestContext, handler: ReplyCase['handler']) {
  const app = fastify({ http2: true })
  const store = new MemoryStore()
  const counter = { runs: 0 }
  await app.register(idempotency, { store, metrics: false })
  app.post('/case', function (request, reply) {
    counter.runs++
    return handler.call(this as never, request as never, reply as never) as never
  })
  const client = connect(await listen(app as never))
  t.after(() => {
    client.destroy()
    return app.close()
  })
  const open = () => {
    const stream = client.request({ ':method': 'POST', ':path': '/case', 'idempotency-key': 'k-1' })
    stream.on('error', () => {})
    stream.end()
    return stream
  }
  const post = async (): Promise<Answer> => {
    const stream = open()
    const [{ ':status': statusCode, ...headers }] = await once(stream, 'response', {
      signal: AbortSignal.timeout(3_000),
    })
    const lines = Object.entries(headers).flatMap(([name, value]) => [value].flat().map((one) => `${name}: ${one}`))
    return { statusCode, headers: lines, body: Buffer.concat(await stream.toArray()), isWhole: true }
  }
  const scopedKey = () => app.idempotency.scopedKey('anonymous', 'POST', '/case', 'k-1')
  const settled = () => until('the claim to end', async () => (await store.read(scopedKey()))?.state !== 'pending')
  return { counter, open, post, settled }
}
