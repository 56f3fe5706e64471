/** A store that is slow, down or wrong: unknown is unknown, nothing runs twice, and the client is never kept hanging. */

import assert from 'node:assert/strict'
import { describe, it, type TestContext } from 'node:test'
import { MemoryStore, ResponseTooLargeError } from '../src/index.ts'
import { createApp, logCollector, post } from './support/app.ts'
import { breakableStore, gate, intercepted, until } from './support/stores.ts'

const SCOPED_KEY = 'idem#v1#anonymous#POST:/pay#k'

async function payApp(t: TestContext, options: object) {
  const { lines, logger } = logCollector()
  const app = await createApp(t, options, { logger })
  let runs = 0
  app.post('/pay', async (_request, reply) => reply.code(201).send({ run: ++runs }))
  return { app, lines, runs: () => runs }
}

describe('a claim without an answer', () => {
  it('is 503 with Retry-After, and the route does not run', async (t) => {
    const { store, broken } = breakableStore()
    const { app, runs, lines } = await payApp(t, { store })
    broken.add('claim')
    const response = await post(app, '/pay', 'k')
    assert.equal(response.statusCode, 503)
    assert.equal(response.headers['retry-after'], '1')
    assert.equal(runs(), 0)
    assert.ok(
      lines.some(
        ({ msg, operation, reason }) => /claim failed/.test(msg) && operation === 'claim' && reason === 'ECONNREFUSED',
      ),
    )
    broken.clear()
    assert.equal((await post(app, '/pay', 'k')).body, '{"run":1}')
  })

  it("with onStoreError: 'proceed' runs unprotected, and says so", async (t) => {
    const { store, broken } = breakableStore()
    const { app, lines } = await payApp(t, { store, onStoreError: 'proceed' })
    broken.add('claim')
    for (const run of [1, 2]) assert.equal((await post(app, '/pay', 'k')).body, `{"run":${run}}`)
    assert.equal(lines.filter(({ msg }) => /runs unprotected/.test(msg)).length, 2)
  })

  it('within storeTimeoutMs is not waited for, and is given back by token when it was made after all', async (t) => {
    const { open, opened } = gate()
    const inner = new MemoryStore()
    const calls: string[] = []
    const store = intercepted(inner, async (operation, perform) => {
      calls.push(operation)
      if (operation === 'claim' && calls.length === 1) {
        await opened // the command waits in a driver's queue, and is carried out long after its time is up
      }
      return perform()
    })
    const { app, runs } = await payApp(t, { store, storeTimeoutMs: 20 })
    const startedAt = Date.now()
    assert.equal((await post(app, '/pay', 'k')).statusCode, 503)
    assert.ok(Date.now() - startedAt < 1_000)
    await until('a first attempt to give it back', () => calls.length === 3)
    assert.deepEqual(calls, ['claim', 'read', 'release'])
    open()
    await until('the ghost claim is released', () => calls.length === 4)
    assert.equal(calls[3], 'release')
    await until('the key is free', async () => (await inner.read(SCOPED_KEY)) === undefined)
    assert.equal((await post(app, '/pay', 'k')).body, '{"run":1}')
    assert.equal(runs(), 1)
  })

  it('whose reply was lost after it was made is given back, so that the retry runs within the lease', async (t) => {
    const inner = new MemoryStore()
    let isLost = true
    const store = intercepted(inner, async (operation, perform) => {
      const result = await perform()
      if (operation === 'claim' && isLost) throw new Error('connection reset')
      return result
    })
    const { app } = await payApp(t, { store })
    assert.equal((await post(app, '/pay', 'k')).statusCode, 503)
    isLost = false
    await until('the key is free', async () => (await inner.read(SCOPED_KEY)) === undefined)
    assert.equal((await post(app, '/pay', 'k')).body, '{"run":1}')
  })

  it('because the memory store is full is 503, and no live record is forgotten', async (t) => {
    const store = new MemoryStore({ maxRecords: 1 })
    const { app, lines } = await payApp(t, { store })
    await post(app, '/pay', 'a')
    assert.equal((await post(app, '/pay', 'b')).statusCode, 503)
    assert.equal((await post(app, '/pay', 'a')).body, '{"run":1}')
    assert.equal(store.usage.refused, 1)
    assert.ok(lines.some(({ reason }) => reason === 'full'))
  })

  it('because the store throws instead of rejecting is 503', async (t) => {
    const { store } = breakableStore()
    store.claim = () => {
      throw new Error('not connected')
    }
    const { app } = await payApp(t, { store })
    assert.equal((await post(app, '/pay', 'k')).statusCode, 503)
  })
})

describe('a completion that fails', () => {
  for (const outcome of ['complete', 'fail', 'release'] as const) {
    it(`(${outcome}) still answers the client, and is written when the store is back`, async (t) => {
      const { store, broken, calls, inner } = breakableStore()
      const { app, runs } = await payApp(t, { store, outcome: () => outcome })
      broken.add(outcome)
      assert.equal((await post(app, '/pay', 'k')).body, '{"run":1}')
      assert.equal((await post(app, '/pay', 'k')).statusCode, 409, 'the claim is kept: nothing runs again meanwhile')
      await until('it is tried again', () => calls.filter((call) => call === outcome).length >= 2)
      broken.clear()
      await until('it is written', async () => (await inner.read(SCOPED_KEY))?.state !== 'pending')
      const retry = await post(app, '/pay', 'k')
      assert.equal(retry.body, outcome === 'complete' ? '{"run":1}' : '{"run":2}')
      assert.equal(runs(), outcome === 'complete' ? 1 : 2)
    })
  }

  it('by silence keeps the client waiting no longer than storeTimeoutMs', async (t) => {
    const { opened, open } = gate()
    const inner = new MemoryStore()
    const store = intercepted(inner, async (operation, perform) => {
      if (operation === 'complete') await opened
      return perform()
    })
    const { app } = await payApp(t, { store, storeTimeoutMs: 20 })
    assert.equal((await post(app, '/pay', 'k')).statusCode, 201)
    open()
    await until('the record is written', async () => (await inner.read(SCOPED_KEY))?.state === 'completed')
    assert.equal((await post(app, '/pay', 'k')).body, '{"run":1}')
  })

  it('after it was written (only the reply was lost) leaves one record', async (t) => {
    const inner = new MemoryStore()
    let losses = 0
    const store = intercepted(inner, async (operation, perform) => {
      const result = await perform()
      if (operation === 'complete' && losses++ === 0) throw new Error('connection reset')
      return result
    })
    const { app, lines } = await payApp(t, { store })
    assert.equal((await post(app, '/pay', 'k')).statusCode, 201)
    await until('the write is repeated', () => losses === 2)
    assert.equal((await post(app, '/pay', 'k')).body, '{"run":1}')
    assert.ok(!lines.some(({ msg }) => /another attempt owns/.test(msg)), 'the owner recognises its own write')
  })

  it('for good is given up loudly, and the lease is left to run out', async (t) => {
    const { store, broken, calls } = breakableStore()
    const { app, lines } = await payApp(t, { store, leaseMs: 30 }) // attempts are at most a third of a lease apart
    broken.add('complete')
    assert.equal((await post(app, '/pay', 'k')).statusCode, 201)
    await until('it is given up', () => lines.some(({ msg }) => /could not be recorded/.test(msg)))
    assert.equal(calls.filter((call) => call === 'complete').length, 21)
    const renewals = calls.filter((call) => call === 'renew').length
    await new Promise((resolve) => setTimeout(resolve, 40))
    assert.equal(calls.filter((call) => call === 'renew').length, renewals)
  })

  it('because the store has no room for the response: the retry is told, and nothing runs again', async (t) => {
    const { store } = breakableStore()
    const complete = store.complete
    store.complete = async (claim, response, ttlMs) => {
      if (response.body !== null) throw new ResponseTooLargeError('400 KB')
      return complete(claim, response, ttlMs)
    }
    const { app, runs } = await payApp(t, { store })
    assert.equal((await post(app, '/pay', 'k')).body, '{"run":1}')
    assert.equal((await post(app, '/pay', 'k')).json().code, 'FST_IDEMPOTENCY_NOT_REPLAYABLE')
    assert.equal(runs(), 1)
  })

  it('is waited for when the app closes', async (t) => {
    const { store, broken, inner } = breakableStore()
    const { app } = await payApp(t, { store })
    broken.add('complete')
    await post(app, '/pay', 'k')
    broken.clear()
    await app.close()
    assert.equal((await inner.read(SCOPED_KEY))?.state, 'completed')
  })
})

describe('the record is there before the client can know', () => {
  it('an immediate retry never finds its own first request pending', async (t) => {
    const { open, opened } = gate()
    let isRecorded = false
    const store = intercepted(new MemoryStore(), async (operation, perform) => {
      if (operation === 'complete') {
        await opened
        isRecorded = true
      }
      return perform()
    })
    const { app } = await payApp(t, { store })
    const first = post(app, '/pay', 'k').then((response) => ({ response, wasRecorded: isRecorded }))
    await new Promise(setImmediate)
    open()
    const { response, wasRecorded } = await first
    assert.equal(response.statusCode, 201)
    assert.equal(wasRecorded, true)
  })
})
