/** Clients that leave before they have the whole answer: their retry gets what the handler made of the request. */

import assert from 'node:assert/strict'
import { PassThrough, Readable } from 'node:stream'
import { test } from 'node:test'
import { setImmediate as nextTurn } from 'node:timers/promises'
import type { FastifyReply } from 'fastify'
import { type Answer, assertNotReplayable, departure, linesOf, openPost, serveCase } from './support/replies.ts'
import { gate } from './support/stores.ts'

const boom = (): never => {
  throw new Error('boom')
}

// Clients that leave while the handler works. What it answers is kept for their retry.
const unheard: Record<string, { finish: (reply: FastifyReply) => unknown; body: string; status?: number }> = {
  'returns an object': { finish: () => ({ id: 'p-1' }), body: '{"id":"p-1"}' },
  'sends callback-style': { finish: (reply) => void reply.code(201).send('paid'), body: 'paid', status: 201 },
  'returns reply.send()': { finish: (reply) => reply.code(201).send('paid'), body: 'paid', status: 201 },
  'answers 204': { finish: (reply) => reply.code(204).send(), body: '', status: 204 },
  'returns a Buffer': { finish: () => Buffer.from('paid'), body: 'paid' },
  'returns a web Response': { finish: () => new Response('paid', { status: 202 }), body: 'paid', status: 202 },
}
for (const [what, { finish, body, status = 200 }] of Object.entries(unheard)) {
  for (const style of ['async', 'callback'] as const) {
    if (style === 'callback' && !what.includes('send') && !what.includes('204')) continue
    test(`a client that leaves while an ${style} handler runs, which then ${what}, gets it on its retry`, async (t) => {
      const { entered, closed, wait } = departure()
      const { counter, post, settled, url } = await serveCase(t, {
        handler(_, reply) {
          const done = wait(reply).then(() => finish(reply))
          return style === 'async' ? done : undefined
        },
      })
      const { request } = openPost(url, 'k-1')
      await entered.opened
      assert.equal(await outcomeOf(post()), 'FST_IDEMPOTENCY_IN_PROGRESS')
      request.destroy()
      await closed.opened
      await settled()
      const again = await post()
      assert.equal(again.statusCode, status, again.body.toString())
      assert.equal(again.body.toString(), body)
      assert.deepEqual(linesOf(again, 'idempotent-replayed'), ['idempotent-replayed: true'])
      assert.equal(counter.runs, 1)
    })
  }
}

test('a client that leaves a handler which then answers nothing is not given an empty success', async (t) => {
  const { entered, wait } = departure()
  const { counter, post, settled, url } = await serveCase(t, { handler: async (_, reply) => wait(reply) })
  const { request } = openPost(url, 'k-1')
  await entered.opened
  request.destroy()
  await settled()
  assertNotReplayable(await post())
  assert.equal(counter.runs, 1)
})

test('a client that leaves a handler which then throws: its retry runs', async (t) => {
  const { entered, wait } = departure()
  let isFixed = false
  const { counter, post, settled, url } = await serveCase(t, {
    handler: async (_, reply) => (isFixed ? 'done' : wait(reply).then(boom)),
  })
  const { request } = openPost(url, 'k-1')
  await entered.opened
  request.destroy()
  await settled()
  isFixed = true
  assert.equal((await post()).body.toString(), 'done')
  assert.equal(counter.runs, 2)
})

test('a client that leaves a hijacked reply: no retry runs while the handler does, and none afterwards', async (t) => {
  const { entered, closed, wait } = departure()
  const goOn = gate()
  const { counter, post, settled, url } = await serveCase(t, {
    handler: async (_, reply) => {
      reply.hijack()
      await wait(reply)
      await goOn.opened
    },
  })
  const { request } = openPost(url, 'k-1')
  await entered.opened
  request.destroy()
  await closed.opened
  await nextTurn()
  assert.equal(await outcomeOf(post()), 'FST_IDEMPOTENCY_IN_PROGRESS')
  goOn.open()
  await settled()
  assertNotReplayable(await post())
  assert.equal(counter.runs, 1)
})

async function outcomeOf(answer: Promise<Answer>): Promise<string> {
  return JSON.parse((await answer).body.toString()).code
}

const abandoned: Record<string, (source: PassThrough) => unknown> = {
  'a Node stream': (source) => source,
  'a web stream': (source) => Readable.toWeb(source),
  'a web Response': (source) => new Response(Readable.toWeb(source) as ReadableStream),
}
for (const [what, wrap] of Object.entries(abandoned)) {
  test(`a client that leaves in the middle of ${what} gets the complete answer on its retry`, async (t) => {
    const source = new PassThrough()
    const closed = gate()
    const { counter, post, settled, url } = await serveCase(t, {
      handler: async (_, reply) => {
        reply.raw.on('close', () => closed.open())
        return wrap(source)
      },
    })
    const { request, response } = openPost(url, 'k-1')
    source.write('first half, ')
    await response
    request.destroy()
    await closed.opened
    source.write('second half')
    source.end()
    await settled()
    const again = await post()
    assert.equal(again.body.toString(), 'first half, second half')
    assert.deepEqual(linesOf(again, 'idempotent-replayed'), ['idempotent-replayed: true'])
    assert.equal(counter.runs, 1)
  })

  test(`a client that leaves before ${what} begins gets the complete answer on its retry`, async (t) => {
    const closed = gate()
    const entered = gate()
    const { counter, post, settled, url } = await serveCase(t, {
      handler: async (_, reply) => {
        reply.raw.on('close', () => closed.open())
        entered.open()
        await closed.opened
        return wrap(new PassThrough().end('all of it'))
      },
    })
    const { request } = openPost(url, 'k-1')
    await entered.opened
    request.destroy()
    await settled()
    const again = await post()
    assert.equal(again.body.toString(), 'all of it')
    assert.deepEqual(linesOf(again, 'idempotent-replayed'), ['idempotent-replayed: true'])
    assert.equal(counter.runs, 1)
  })
}

test('a client that leaves a stream which then fails has not been paid for: its retry runs', async (t) => {
  const source = new PassThrough()
  const closed = gate()
  let isFixed = false
  const { counter, post, settled, url } = await serveCase(t, {
    handler: async (_, reply) => {
      reply.raw.on('close', () => closed.open())
      return isFixed ? 'done' : source
    },
  })
  const { request, response } = openPost(url, 'k-1')
  source.write('first half, ')
  await response
  request.destroy()
  await closed.opened
  source.destroy(new Error('boom'))
  await settled()
  isFixed = true
  assert.equal((await post()).body.toString(), 'done')
  assert.equal(counter.runs, 2)
})
