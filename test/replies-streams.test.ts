/** Bodies that come in pieces: Node and web streams, web responses, server-sent events. */

import assert from 'node:assert/strict'
import { createReadStream } from 'node:fs'
import { PassThrough, Readable, Stream } from 'node:stream'
import { test } from 'node:test'
import { setImmediate as nextTurn } from 'node:timers/promises'
import { createGzip } from 'node:zlib'
import { MemoryStore } from '../src/index.ts'
import {
  assertNotReplayable,
  assertReplayed,
  assertReplayOf,
  bareAnswer,
  linesOf,
  openPost,
  type ReplyCase,
  remoteStore,
  serveCase,
} from './support/replies.ts'
import { gate, intercepted, until } from './support/stores.ts'

const everyByte = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte))

/** A web stream that gives these chunks, then ends, or fails when the last of them is an error. */
function webStream(...chunks: (string | Uint8Array | Error)[]): ReadableStream {
  return new ReadableStream({
    async pull(controller) {
      await nextTurn()
      const chunk = chunks.shift()
      if (chunk === undefined) controller.close()
      else if (chunk instanceof Error) controller.error(chunk)
      else controller.enqueue(chunk)
    },
  })
}

/** A Node stream that gives these chunks, one for each turn of the event loop, then ends or fails. */
function nodeStream(...chunks: (string | Uint8Array | Error)[]): Readable {
  return Readable.from(
    (async function* () {
      for (const chunk of chunks) {
        await nextTurn()
        if (chunk instanceof Error) throw chunk
        yield chunk
      }
    })(),
    { objectMode: false },
  )
}

/** A stream as of Node 0.8: it has `pipe`, emits when it likes and cannot be iterated. */
function oldStyleStream(...chunks: string[]): NodeJS.ReadableStream {
  const stream = Object.assign(new Stream(), { readable: true }) as unknown as NodeJS.ReadableStream
  setImmediate(() => {
    for (const chunk of chunks) stream.emit('data', Buffer.from(chunk))
    stream.emit('end')
    process.nextTick(() => stream.emit('close'))
  })
  return stream
}

const replayed: Record<string, ReplyCase> = {
  'a Node stream': { handler: async () => nodeStream(everyByte, 'żółć', everyByte) },
  'a Node stream sent callback-style': {
    handler: (_, reply) => void reply.code(201).type('image/png').send(nodeStream(everyByte)),
  },
  'an empty Node stream': { handler: async () => Readable.from([]) },
  'a Node stream of strings in object mode': { handler: async () => Readable.from(['a', 'ż', 'c']) },
  'a file': { handler: async (_, reply) => reply.type('text/x-ts').send(createReadStream(import.meta.filename)) },
  'a stream with a content-length of its own': {
    handler: async (_, reply) => reply.header('content-length', 256).send(nodeStream(everyByte)),
  },
  'a compressed stream': {
    handler: async (_, reply) => {
      reply.header('content-encoding', 'gzip')
      return nodeStream('paid').pipe(createGzip())
    },
  },
  'an old-style stream': { handler: async (_, reply) => reply.send(oldStyleStream('old ', 'style')) },
  'a 204 with a stream': { handler: async (_, reply) => reply.code(204).send(nodeStream('dropped')) },
  'a web stream': { handler: async () => webStream(everyByte, everyByte) },
  'an empty web stream': { handler: async () => webStream() },
  'a web stream sent callback-style': { handler: (_, reply) => void reply.code(202).send(webStream('ż', everyByte)) },
  'a web Response': {
    handler: async () =>
      new Response('{"id": "p-1"}', {
        status: 201,
        headers: { 'content-type': 'application/hal+json', location: '/p/1', 'x-many': 'a, b' },
      }),
  },
  'a web Response sent callback-style': { handler: (_, reply) => void reply.send(Response.json({ id: 'ż' })) },
  'a web Response with a type of its own': { handler: async () => new Response('plain') },
  'a web Response with a binary body': { handler: async () => new Response(everyByte) },
  'a web Response of a stream': { handler: async () => new Response(webStream(everyByte), { status: 202 }) },
  'a web Response without a body': { handler: async () => new Response(null, { status: 202 }) },
  'a web Response with an empty body': { handler: async () => new Response('') },
  'a web Response of 204': { handler: async () => new Response(null, { status: 204, headers: { 'x-a': '1' } }) },
  'a web Response that redirects': { handler: async () => Response.redirect('https://shop.example/paid', 303) },
  'a web Response and headers of the reply': {
    handler: async (_, reply) =>
      reply
        .code(418)
        .header('x-own', '1')
        .header('x-both', 'old')
        .send(new Response('x', { status: 203, headers: { 'x-both': 'new' } })),
  },
}
for (const [what, replyCase] of Object.entries(replayed)) {
  test(`a retry gets ${what}, as the first request did`, async (t) => {
    await assertReplayed(t, replyCase)
  })
}

for (const [what, handler] of Object.entries<ReplyCase['handler']>({
  'a Node stream': async () => nodeStream(everyByte),
  'a web stream': async () => webStream(everyByte),
  'a web Response': async () => new Response(everyByte),
})) {
  test(`${what} of exactly maxResponseBytes is replayed`, async (t) => {
    await assertReplayed(t, { options: { maxResponseBytes: 256 }, handler })
  })

  test(`${what} over maxResponseBytes is sent whole; a retry is told, not given a second payment`, async (t) => {
    const replyCase: ReplyCase = { options: { maxResponseBytes: 255 }, handler }
    const { counter, post } = await serveCase(t, replyCase)
    const first = await post()
    assert.deepEqual(first.body, (await bareAnswer(t, replyCase)).body)
    assertNotReplayable(await post())
    assertNotReplayable(await post())
    assert.equal(counter.runs, 1)
  })
}

test('an immediate retry finds the record of a stream, however slow the store', async (t) => {
  await assertReplayed(t, { options: { store: remoteStore() }, handler: async () => nodeStream('a', 'b') })
})

// Replies that end in an error: the client sees it, the record is failed, and the next retry runs.
const boom = new Error('boom')
const failed: Record<string, ReplyCase> = {
  'a Node stream that fails before its first byte': { handler: async () => nodeStream(boom) },
  'a Node stream that fails half-way': { handler: async () => nodeStream('half', boom) },
  'a Node stream that ends without an end': {
    handler: async () => {
      const source = new PassThrough()
      source.write('half')
      setImmediate(() => setImmediate(() => source.destroy()))
      return source
    },
  },
  'a Node stream that had failed when it was sent': {
    handler: async (_, reply) => reply.send(new PassThrough().destroy(boom)),
  },
  'a Node stream that had failed when it was sent callback-style': {
    handler: (_, reply) => void reply.send(new PassThrough().destroy(boom)),
  },
  'a file that does not exist': { handler: async () => createReadStream('/does/not/exist') },
  'a web stream that fails before its first byte': { handler: async () => webStream(boom) },
  'a web stream that fails half-way': { handler: async () => webStream('half', boom) },
  'a web stream that somebody else reads': {
    handler: async () => {
      const source = webStream('x')
      source.getReader()
      return source
    },
  },
  'a web Response whose body fails': { handler: async () => new Response(webStream('half', boom)) },
  'a web Response whose body was used': {
    handler: async () => {
      const response = new Response('x')
      await response.text()
      return response
    },
  },
  'a web Response of a network error': { handler: async () => Response.error() },
  'a web Response of 503': { handler: async () => new Response('later', { status: 503 }) },
  'a web Response of 429': { handler: async () => new Response('later', { status: 429 }) },
  'a stream with status 500': { handler: async (_, reply) => reply.code(500).send(nodeStream('sorry')) },
  'a stream with status 409': { handler: async (_, reply) => reply.code(409).send(nodeStream('busy')) },
}
for (const [what, replyCase] of Object.entries(failed)) {
  test(`${what} reaches the client as without the plugin, and the next retry runs`, async (t) => {
    let isFixed = false
    const { counter, post, settled } = await serveCase(t, {
      handler(request, reply) {
        return isFixed ? reply.code(204).send() : replyCase.handler.call(this, request, reply)
      },
    })
    const bare = await bareAnswer(t, replyCase)
    const first = await post()
    assert.equal(first.statusCode, bare.statusCode)
    assert.equal(first.isWhole, bare.isWhole)
    assert.equal(first.body.toString(), bare.body.toString())
    assert.deepEqual(linesOf(first, 'idempotent-replayed'), [])
    await settled()
    isFixed = true
    const done = await post()
    assert.equal(done.statusCode, 204, done.body.toString())
    assertReplayOf(done, await post())
    assert.equal(counter.runs, 2)
  })
}

// Here the words of the error differ from bare Fastify's; what it means does not.
const failedInOtherWords: Record<string, () => unknown> = {
  'a web stream that fails without saying why': () => new ReadableStream({ pull: (controller) => controller.error() }),
  'a web Response whose body somebody else reads': () => {
    const response = new Response('x')
    response.body?.getReader()
    return response
  },
}
for (const [what, reply] of Object.entries(failedInOtherWords)) {
  test(`${what} is a failure all the same, and the next retry runs`, async (t) => {
    let isFixed = false
    const { counter, post, settled } = await serveCase(t, { handler: async () => (isFixed ? 'done' : reply()) })
    assert.equal((await post()).statusCode, 500)
    await settled()
    isFixed = true
    assert.equal((await post()).body.toString(), 'done')
    assert.equal(counter.runs, 2)
  })
}

test('a stream with status 500 that fails while the store is being told does not crash the process', async (t) => {
  const told = gate()
  const source = new PassThrough()
  const store = intercepted(new MemoryStore(), async (operation, perform) => {
    if (operation === 'fail') {
      source.destroy(boom)
      told.open()
      await nextTurn()
      await nextTurn()
    }
    return perform()
  })
  const { post, settled, counter } = await serveCase(t, {
    options: { store },
    handler: async (_, reply) => reply.code(500).send(source),
  })
  const [first] = await Promise.all([post(), told.opened])
  assert.equal(first.statusCode, 500)
  await settled()
  assert.equal(counter.runs, 1)
})

test("with outcome: () => 'complete' a stream that failed is not replayed as a success", async (t) => {
  for (const source of [() => nodeStream(boom), () => nodeStream('half', boom), () => webStream('half', boom)]) {
    const { counter, post } = await serveCase(t, {
      options: { outcome: () => 'complete' },
      handler: async () => source(),
    })
    await post()
    assertNotReplayable(await post())
    assert.equal(counter.runs, 1)
  }
})

test('an onSend hook that fails after a stream was handed over does not hold the key for ever', async (t) => {
  const { post, settled } = await serveCase(t, {
    prepare: (app) =>
      app.addHook('onSend', async (_, __, payload) => {
        if (payload instanceof Readable) throw boom
        return payload
      }),
    handler: async () => nodeStream('paid'),
  })
  assert.equal((await post()).statusCode, 500)
  await settled()
})

const events = ['data: 1\n\n', 'data: 2\n\n']
const eventStreams: Record<string, ReplyCase['handler']> = {
  'a Node stream': async (_, reply) => reply.type('text/event-stream').send(nodeStream(...events)),
  'a Node stream, its type in capitals': async (_, reply) =>
    reply.type('Text/Event-Stream; charset=utf-8').send(nodeStream(...events)),
  'a web stream': async (_, reply) => reply.type('text/event-stream').send(webStream(...events)),
  'a web Response': async () =>
    new Response(webStream(...events.map((event) => Buffer.from(event))), {
      headers: { 'content-type': 'text/event-stream' },
    }),
}
for (const [what, handler] of Object.entries(eventStreams)) {
  test(`server-sent events from ${what} reach the client; a retry is told, not given a second payment`, async (t) => {
    const { counter, post } = await serveCase(t, { handler })
    const first = await post()
    assert.equal(first.statusCode, 200)
    assert.equal(first.body.toString(), events.join(''))
    assertNotReplayable(await post())
    assert.equal(counter.runs, 1)
  })
}

test('a client that leaves server-sent events frees a source that is silent; a retry is told', async (t) => {
  const source = new PassThrough()
  const closed = gate()
  const { counter, post, settled, url } = await serveCase(t, {
    handler: async (_, reply) => {
      reply.raw.on('close', () => closed.open())
      return reply.type('text/event-stream').send(source)
    },
  })
  const { request, response } = openPost(url, 'k-1')
  source.write(events[0])
  await response
  request.destroy()
  await closed.opened
  await until('the source to be freed', () => source.destroyed)
  await settled()
  assertNotReplayable(await post())
  assert.equal(counter.runs, 1)
})
