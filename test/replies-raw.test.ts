/** Replies that go around Fastify, or come twice. */

import assert from 'node:assert/strict'
import { Readable } from 'node:stream'
import { test } from 'node:test'
import { setImmediate as nextTurn } from 'node:timers/promises'
import type { FastifyReply } from 'fastify'
import fastify from 'fastify'
import idempotency, { MemoryStore } from '../src/index.ts'
import { createApp, post } from './support/app.ts'
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
import { gate } from './support/stores.ts'

const boom = (): never => {
  throw new Error('boom')
}

// Answers that Fastify does not see. The operation ran, and that is all a retry is told.
function writeRaw(reply: FastifyReply): void {
  reply.raw.writeHead(201, { 'content-type': 'text/plain', 'x-raw': '1' })
  reply.raw.write('paid ')
  reply.raw.end('raw')
}
const unseen: Record<string, ReplyCase['handler']> = {
  'reply.raw.end() in a plain function': (_, reply) => void writeRaw(reply),
  'reply.raw.end() in an async function': async (_, reply) => void writeRaw(reply),
  'reply.raw.end() from a timer': (_, reply) => void setImmediate(() => writeRaw(reply)),
  'reply.raw.end() and `return reply`': async (_, reply) => {
    writeRaw(reply)
    return reply
  },
  'reply.raw.end() and another value returned': async (_, reply) => {
    writeRaw(reply)
    return { never: 'sent' }
  },
  'reply.raw.end() and then an error': async (_, reply) => {
    writeRaw(reply)
    boom()
  },
  'reply.raw.end() and then an error, in a plain function': (_, reply) => {
    writeRaw(reply)
    boom()
  },
  'reply.raw written to in two turns': async (_, reply) => {
    reply.raw.writeHead(200, { 'content-type': 'text/plain' })
    reply.raw.write('one ')
    setImmediate(() => reply.raw.end('two'))
  },
  'hijack and raw.end() in a plain function': (_, reply) => {
    reply.hijack()
    writeRaw(reply)
  },
  'hijack and raw.end() in an async function': async (_, reply) => {
    reply.hijack()
    writeRaw(reply)
  },
  'hijack and raw.end() later, `return reply`': async (_, reply) => {
    reply.hijack()
    setImmediate(() => writeRaw(reply))
    return reply
  },
  'hijack, raw.end() and then an error': async (_, reply) => {
    reply.hijack()
    writeRaw(reply)
    await nextTurn()
    boom()
  },
  'hijack and a stream piped to reply.raw': async (_, reply) => {
    reply.hijack()
    Readable.from(['a', 'b']).pipe(reply.raw)
  },
  'server-sent events through reply.raw': async (_, reply) => {
    reply.raw.writeHead(200, { 'content-type': 'text/event-stream' })
    for (const event of ['data: 1\n\n', 'data: 2\n\n']) {
      reply.raw.write(event)
      await nextTurn()
    }
    reply.raw.end()
  },
  'server-sent events after a hijack, in a plain function': (_, reply) => {
    reply.hijack()
    reply.raw.writeHead(200, { 'content-type': 'text/event-stream' })
    reply.raw.write('data: 1\n\n')
    setImmediate(() => reply.raw.end('data: 2\n\n'))
  },
}
for (const [what, handler] of Object.entries(unseen)) {
  test(`${what}: reaches the client as it is; a retry is told, not given a second payment`, async (t) => {
    const replyCase: ReplyCase = { handler }
    const { counter, post, settled } = await serveCase(t, replyCase)
    const first = await post()
    const bare = await bareAnswer(t, replyCase)
    assert.equal(first.statusCode, bare.statusCode)
    assert.equal(first.body.toString(), bare.body.toString())
    assert.ok(first.isWhole)
    await settled()
    assertNotReplayable(await post())
    assertNotReplayable(await post())
    assert.equal(counter.runs, 1)
  })
}

test('while a hijacked handler still works after its answer, a retry is told to wait, and then that it ran', async (t) => {
  const { open, opened } = gate()
  const { counter, post, settled } = await serveCase(t, {
    handler: async (_, reply) => {
      reply.hijack()
      writeRaw(reply)
      await opened
    },
  })
  await post()
  const early = await post()
  assert.equal(early.statusCode, 409)
  assert.equal(JSON.parse(early.body.toString()).code, 'FST_IDEMPOTENCY_IN_PROGRESS')
  open()
  await settled()
  assertNotReplayable(await post())
  assert.equal(counter.runs, 1)
})

test('hijack and then an error before anything was written: the next retry runs', async (t) => {
  let isFixed = false
  const { counter, post, settled, url } = await serveCase(t, {
    handler: async (_, reply) => {
      if (isFixed) return 'done'
      reply.hijack()
      setImmediate(() => reply.raw.destroy())
      boom()
    },
  })
  await assert.rejects(openPost(url, 'k-1').response)
  await settled()
  isFixed = true
  const done = await post()
  assert.equal(done.body.toString(), 'done')
  assertReplayOf(done, await post())
  assert.equal(counter.runs, 2)
})

test('a value returned after reply.raw was written to breaks the connection, not the process', async (t) => {
  const replyCase: ReplyCase = {
    handler: async (_, reply) => {
      reply.raw.write('half')
      await nextTurn()
      return 'whole'
    },
  }
  const { counter, post, settled } = await serveCase(t, replyCase)
  assert.equal((await bareAnswer(t, replyCase)).isWhole, false)
  assert.equal((await post()).isWhole, false)
  await settled()
  const again = await post()
  assert.deepEqual(linesOf(again, 'idempotent-replayed'), [], 'what nobody received is not replayed')
  assert.ok(counter.runs === 1 ? again.statusCode === 409 : !again.isWhole)
})

// Handlers that answer twice. The first answer counts, as it does without the plugin.
const twice: Record<string, ReplyCase['handler']> = {
  'reply.send(a) without return': async (_, reply) => void reply.code(201).send({ a: 1 }),
  'reply.send(a) and return b': async (_, reply) => {
    reply.code(201).header('x-a', '1').send({ a: 1 })
    return 'b'
  },
  'reply.send(a), a later turn, and return b': async (_, reply) => {
    reply.code(201).send({ a: 1 })
    await nextTurn()
    return 'b'
  },
  'reply.send(a) and then an error': async (_, reply) => {
    reply.code(201).header('x-a', '1').send('a')
    boom()
  },
  'reply.send(a) and then an error, in a plain function': (_, reply) => {
    reply.code(201).send('a')
    boom()
  },
  'reply.send(a) and reply.send(b)': (_, reply) => {
    reply.code(201).type('text/html').send('a')
    reply.send({ b: 1 })
  },
  'reply.send(a) and reply.send(error)': (_, reply) => {
    reply.code(201).send('a')
    reply.send(new Error('boom'))
  },
  'reply.send(a) and reply.hijack()': (_, reply) => void reply.code(201).send('a').hijack(),
  'return of reply.callNotFound() and a value': async (_, reply) => {
    reply.callNotFound()
    return 'b'
  },
}
const stores = { 'an embedded store': () => new MemoryStore(), 'a remote store': remoteStore }
for (const [what, handler] of Object.entries(twice)) {
  for (const [which, store] of Object.entries(stores)) {
    test(`${what}: the first answer is sent and replayed (${which})`, async (t) => {
      await assertReplayed(t, { options: { store: store() }, handler })
    })
  }
}

// Of a stream and a second answer bare Fastify sends whichever is quicker. What is recorded is what was sent first.
const streamFirst: Record<string, ReplyCase['handler']> = {
  'reply.send(stream) without return': async (_, reply) => void reply.code(201).send(Readable.from(['a'])),
  'reply.send(stream) and return b': async (_, reply) => {
    reply.code(201).send(Readable.from(['a']))
    return 'b'
  },
  'reply.send(stream) and then an error': async (_, reply) => {
    reply.code(201).send(Readable.from(['a']))
    boom()
  },
  'reply.send(Response) and return b': async (_, reply) => {
    reply.send(new Response('a', { status: 201 }))
    return 'b'
  },
}
for (const [what, handler] of Object.entries(streamFirst)) {
  test(`${what}: the stream is sent and replayed, never an empty success`, async (t) => {
    const { counter, post, settled } = await serveCase(t, { handler })
    const first = await post()
    assert.equal(first.statusCode, 201)
    assert.equal(first.body.toString(), 'a')
    await settled()
    assertReplayOf(first, await post())
    assert.equal(counter.runs, 1)
  })
}

test('reply.callNotFound() where the plugin covers only a child instance: a retry is told honestly', async (t) => {
  const app = fastify()
  t.after(() => app.close())
  let runs = 0
  await app.register(async (child) => {
    await child.register(idempotency, { metrics: false })
    const missing = (reply: FastifyReply) => {
      runs++
      return reply.callNotFound()
    }
    child.post('/returned', async (_, reply) => missing(reply))
    child.post('/called', (_, reply) => void missing(reply))
  })
  for (const url of ['/returned', '/called']) {
    runs = 0
    const send = () => app.inject({ method: 'POST', url, headers: { 'idempotency-key': 'k-1' } })
    assert.equal((await send()).statusCode, 404)
    const again = await send()
    if (again.statusCode === 409) assert.equal(again.json().code, 'FST_IDEMPOTENCY_NOT_REPLAYABLE')
    else assert.equal(again.headers['idempotent-replayed'], 'true')
    assert.equal(runs, 1)
  }
})

test('a reply with trailers reaches the client with them, and a retry is told that it was not recorded', async (t) => {
  const app = await createApp(t)
  let runs = 0
  app.post('/', async (_request, reply) => {
    runs++
    reply.trailer('x-checksum', (_reply, _payload, done) => done(null, 'abc'))
    return { paid: true }
  })
  const first = await post(app, '/', 'k')
  assert.deepEqual([first.json(), first.trailers['x-checksum']], [{ paid: true }, 'abc'])
  assert.equal((await post(app, '/', 'k')).json().code, 'FST_IDEMPOTENCY_NOT_REPLAYABLE')
  assert.equal(runs, 1)
})
