/** Leases, late answers and stale owners. The store's clock is the test's own; nothing sleeps and hopes. */

import assert from 'node:assert/strict'
import { describe, it, type TestContext } from 'node:test'
import type { FastifyReply } from 'fastify'
import { type IdempotencyOptions, MemoryStore } from '../src/index.ts'
import { createApp, listen, logCollector, post } from './support/app.ts'
import { breakableStore, gate, until } from './support/stores.ts'

/** A breakable memory store on a clock that only `advance` moves. */
function clockedStore() {
  let now = 0
  const advance = (ms: number) => {
    now += ms
  }
  return { ...breakableStore(new MemoryStore({ now: () => now })), advance }
}

const count = (calls: readonly string[], operation: string) => calls.filter((call) => call === operation).length

/** One route whose handler waits for the test, once per run. */
async function gatedApp(t: TestContext, options: IdempotencyOptions) {
  const { lines, logger } = logCollector()
  const app = await createApp(t, options, { logger })
  const runs: { signal: AbortSignal; fence: number; finish: (value: string) => void; crash: (error: Error) => void }[] =
    []
  app.post('/pay', (request) => {
    const { signal, fence } = request.idempotency ?? assert.fail('no context')
    return new Promise<string>((finish, crash) => runs.push({ signal, fence, finish, crash }))
  })
  const started = (n: number) => until(`run ${n} has started`, () => runs.length >= n)
  const run = (n: number) => runs[n - 1] ?? assert.fail(`no run ${n}`)
  return { app, runs, run, started, lines }
}

describe('a running handler', () => {
  it('keeps its lease however long it takes', async (t) => {
    const { store, calls, advance } = clockedStore()
    const { app, run, runs, started } = await gatedApp(t, { store, leaseMs: 90 })
    const first = post(app, '/pay', 'k')
    await started(1)
    for (let renewals = 1; renewals <= 4; renewals++) {
      await until(`renewal ${renewals}`, () => count(calls, 'renew') >= renewals)
      advance(80)
      assert.equal((await post(app, '/pay', 'k')).statusCode, 409)
    }
    run(1).finish('paid')
    assert.equal((await first).body, 'paid')
    assert.equal((await post(app, '/pay', 'k')).body, 'paid')
    assert.equal(runs.length, 1)
    const renewals = count(calls, 'renew')
    await new Promise((resolve) => setTimeout(resolve, 60))
    assert.equal(count(calls, 'renew'), renewals, 'a settled claim is not renewed any more')
  })

  it('stops renewing after the TTL, so that a handler that never answers cannot hold its key for ever', async (t) => {
    const { store, calls } = clockedStore()
    const { app, started } = await gatedApp(t, { store, leaseMs: 15, ttlMs: 20 })
    void post(app, '/pay', 'k')
    await started(1)
    await until('the renewals end', async () => {
      const before = count(calls, 'renew')
      await new Promise((resolve) => setTimeout(resolve, 30))
      return count(calls, 'renew') === before
    })
  })

  it('learns from its signal that the lease is lost, and then writes nothing', async (t) => {
    const { store, broken, advance } = clockedStore()
    const { app, run, started, lines } = await gatedApp(t, { store, leaseMs: 90 })
    broken.add('renew')
    const first = post(app, '/pay', 'k')
    await started(1)
    advance(91)
    const second = post(app, '/pay', 'k')
    await started(2)
    assert.deepEqual([run(1).fence, run(2).fence], [1, 2])
    broken.delete('renew')
    await until('the first owner learns of its loss', () => run(1).signal.aborted)
    assert.equal((run(1).signal.reason as { code: string }).code, 'FST_IDEMPOTENCY_LEASE_LOST')
    assert.equal(run(2).signal.aborted, false)

    run(1).finish('stale')
    assert.equal((await first).body, 'stale')
    assert.equal(
      (await post(app, '/pay', 'k')).statusCode,
      409,
      'the stale owner has neither completed nor freed the key',
    )
    run(2).finish('fresh')
    assert.equal((await second).body, 'fresh')
    assert.equal((await post(app, '/pay', 'k')).body, 'fresh')
    const messages = lines.map(({ msg }) => msg).join('\n')
    assert.match(messages, /took over the claim of a vanished owner/)
    assert.match(messages, /the lease was lost while the handler ran/)
    assert.match(messages, /complete refused, another attempt owns the record/)
  })

  it('is warned when its lease ran out because the store could not be asked', async (t) => {
    const { store, broken } = clockedStore()
    const { app, run, started } = await gatedApp(t, { store, leaseMs: 60 })
    broken.add('renew')
    const first = post(app, '/pay', 'k')
    await started(1)
    await until('the signal is aborted', () => run(1).signal.aborted)
    run(1).finish('paid')
    assert.equal((await first).body, 'paid')
    assert.equal((await post(app, '/pay', 'k')).body, 'paid', 'nobody took over, so the late completion counts')
  })

  it("that failed keeps its fence: the next attempt's is higher", async (t) => {
    const { app, run, started } = await gatedApp(t, {})
    const first = post(app, '/pay', 'k')
    await started(1)
    run(1).crash(new Error('declined'))
    assert.equal((await first).statusCode, 500)
    const second = post(app, '/pay', 'k')
    await started(2)
    assert.equal(run(2).fence, 2)
    run(2).finish('paid')
    assert.equal((await second).body, 'paid')
  })
})

describe('a claim whose owner vanished', () => {
  const abandon = async (t: TestContext, options: IdempotencyOptions) => {
    const { store, broken, advance } = clockedStore()
    const gated = await gatedApp(t, { store, leaseMs: 1_000, ...options })
    broken.add('renew')
    void post(gated.app, '/pay', 'k')
    await gated.started(1)
    advance(1_001)
    return gated
  }

  it('is taken over by the next retry', async (t) => {
    const { app, run, started } = await abandon(t, {})
    const retry = post(app, '/pay', 'k')
    await started(2)
    run(2).finish('paid')
    assert.equal((await retry).body, 'paid')
  })

  it('is not taken over by another request with the key', async (t) => {
    const { app, runs } = await abandon(t, {})
    assert.equal((await post(app, '/pay', 'k', { payload: { amount: 1 } })).statusCode, 422)
    assert.equal(runs.length, 1)
  })

  it("with onLeaseExpired: 'reject' answers 409 uncertain until an operator frees it", async (t) => {
    const { app, run, runs, started } = await abandon(t, { onLeaseExpired: 'reject', credential: () => 'acct_1' })
    for (let i = 0; i < 2; i++) {
      assert.equal((await post(app, '/pay', 'k')).json().code, 'FST_IDEMPOTENCY_UNCERTAIN')
    }
    assert.equal(runs.length, 1)
    const scoped = app.idempotency.scopedKey('acct_1', 'POST', '/pay', 'k')
    const record = await app.idempotency.read(scoped)
    assert.deepEqual([record?.state, record?.leaseRemainingMs], ['pending', 0])
    assert.equal(await app.idempotency.release(scoped), true)
    assert.equal(await app.idempotency.release(scoped), false)
    const retry = post(app, '/pay', 'k')
    await started(2)
    run(2).finish('paid')
    assert.equal((await retry).body, 'paid')
    assert.equal(await app.idempotency.release(scoped), false, 'a completed record is never freed')
    assert.equal((await post(app, '/pay', 'k')).body, 'paid')
  })
})

describe('a claim that came back too late', () => {
  it('is given back, and the route does not run', async (t) => {
    const { store, calls, inner } = clockedStore()
    let now = 0
    t.mock.method(performance, 'now', () => now)
    store.claim = async (request) => {
      calls.push('claim')
      const result = await inner.claim(request)
      now += 950 // over nine tenths of the lease
      return result
    }
    const { app, runs } = await gatedApp(t, { store, leaseMs: 1_000, storeTimeoutMs: 5_000 })
    const response = await post(app, '/pay', 'k')
    assert.equal(response.statusCode, 503)
    assert.equal(response.json().code, 'FST_IDEMPOTENCY_STORE_UNAVAILABLE')
    assert.equal(runs.length, 0)
    assert.deepEqual(calls, ['claim', 'release'])
    assert.equal(await store.read(app.idempotency.scopedKey('anonymous', 'POST', '/pay', 'k')), undefined)
  })
})

describe('handlerTimeout', () => {
  type LateHandler = (reply: FastifyReply, go: Promise<void>) => unknown

  /** Runs a handler past its timeout, checks the 503 and the 409, lets it finish, and returns the retry's answer. */
  const lateAnswer = async (t: TestContext, handler: LateHandler, options: IdempotencyOptions = {}) => {
    const { store, calls } = breakableStore()
    const app = await createApp(t, { store, ...options })
    const { open, opened } = gate()
    let runs = 0
    app.setErrorHandler((error: Error & { statusCode?: number }, _request, reply) =>
      reply.code(error.statusCode ?? 500).send({ error: error.message, run: runs }),
    )
    app.addHook('onRequest', async (_request, reply) => void reply.header('x-request', String(runs)))
    app.post('/pay', { handlerTimeout: 300 }, (_request, reply) => {
      runs++
      return runs === 1 ? handler(reply, opened) : { run: runs }
    })
    const first = await post(app, '/pay', 'k')
    assert.equal(first.statusCode, 503)
    assert.match(first.json().error, /timed out/)
    assert.equal((await post(app, '/pay', 'k')).statusCode, 409, 'the handler still runs')
    open()
    await until('the late answer is recorded', () =>
      calls.some((call) => ['complete', 'fail', 'release'].includes(call)),
    )
    return { retry: await post(app, '/pay', 'k'), calls, runs: () => runs }
  }

  const late: [name: string, handler: LateHandler, statusCode: number, body: string, headers?: object][] = [
    [
      'returns an object after setting status and headers',
      async (reply, go) => {
        reply.header('x-before', '1')
        await go
        reply.code(201).header('location', '/payments/1').header('x-before', '2')
        return { late: true }
      },
      201,
      '{"late":true}',
      { location: '/payments/1', 'x-before': '2', 'content-type': 'application/json; charset=utf-8' },
    ],
    [
      'had set its status in time',
      (reply, go) => {
        reply.code(202)
        return go.then(() => 'late')
      },
      202,
      'late',
    ],
    [
      'sends by callback',
      (reply, go) => void go.then(() => reply.code(201).send({ late: true })),
      201,
      '{"late":true}',
    ],
    ['sends and returns the reply', (reply, go) => go.then(() => reply.send(Buffer.from('late'))), 200, 'late'],
    ['returns a web Response', (_reply, go) => go.then(() => new Response('late', { status: 203 })), 203, 'late'],
    ['returns nothing after 204', (reply, go) => go.then(() => void reply.code(204)), 204, ''],
    ['sends twice: the first counts', (reply, go) => void go.then(() => reply.send('one').send('two')), 200, 'one'],
  ]
  for (const [name, handler, statusCode, body, headers = {}] of late) {
    it(`a late handler that ${name}: the retry replays its answer`, async (t) => {
      const { retry, runs } = await lateAnswer(t, handler)
      assert.equal(retry.statusCode, statusCode)
      assert.equal(retry.body, body)
      assert.equal(retry.headers['idempotent-replayed'], 'true')
      assert.equal(retry.headers['x-request'], '1', 'a per-request header is fresh')
      for (const [header, value] of Object.entries(headers)) assert.equal(retry.headers[header], value)
      assert.equal(runs(), 1)
    })
  }

  it('a late stream is recorded whole', async (t) => {
    const { Readable } = await import('node:stream')
    const { retry } = await lateAnswer(t, (_reply, go) =>
      go.then(() => Readable.from(['x'.repeat(100_000), 'y'.repeat(100_000)])),
    )
    assert.equal(retry.body, 'x'.repeat(100_000) + 'y'.repeat(100_000))
  })

  it('a late handler that throws: the retry runs again', async (t) => {
    const { retry, calls, runs } = await lateAnswer(t, async (_reply, go) => {
      await go
      throw new Error('declined')
    })
    assert.ok(calls.includes('fail'))
    assert.equal(retry.body, '{"run":2}')
    assert.equal(runs(), 2)
  })

  it('a late 503 of its own is a failure, not a success', async (t) => {
    const { calls } = await lateAnswer(t, (reply, go) => go.then(() => reply.code(503).send({ busy: true })))
    assert.ok(calls.includes('fail'))
  })

  it('a late handler that gave up without an answer: 409, never an empty success', async (t) => {
    const { retry, runs } = await lateAnswer(t, async (_reply, go) => void (await go))
    assert.equal(retry.json().code, 'FST_IDEMPOTENCY_NOT_REPLAYABLE')
    assert.equal(runs(), 1)
  })

  it('that strikes while the store is asked: the handler does not run and the key is free', async (t) => {
    const { store, calls, inner } = clockedStore()
    const { open, opened } = gate()
    store.claim = async (request) => {
      calls.push('claim')
      await opened
      return inner.claim(request)
    }
    const app = await createApp(t, { store })
    let runs = 0
    app.post('/pay', { handlerTimeout: 300 }, async () => ({ run: ++runs }))
    assert.equal((await post(app, '/pay', 'k')).statusCode, 503)
    open()
    await until('the claim is given back', () => calls.includes('release'))
    assert.equal(runs, 0)
    assert.equal((await post(app, '/pay', 'k')).body, '{"run":1}')
  })

  it('set for the whole server works the same', async (t) => {
    const { opened, open } = gate()
    const app = await createApp(t, {}, { handlerTimeout: 300 })
    app.post('/pay', () => opened.then(() => 'late'))
    const url = await listen(app)
    const send = () => fetch(`${url}/pay`, { method: 'POST', headers: { 'idempotency-key': 'k' } })
    assert.equal((await send()).status, 503)
    assert.equal((await send()).status, 409)
    open()
    await until('the late answer is there', async () => (await send()).status === 200)
    assert.equal(await (await send()).text(), 'late')
  })
})

describe('fences never go back', () => {
  /** A key whose first owner hangs and whose lease is over. */
  async function takenOver(t: TestContext, store: ReturnType<typeof clockedStore>, more: IdempotencyOptions = {}) {
    const { app, run, started, runs } = await gatedApp(t, { store: store.store, leaseMs: 30_000, ...more })
    const stale = post(app, '/pay', 'k')
    await started(1)
    store.advance(30_001)
    return { app, run, started, runs, stale }
  }

  it('when the one that took over answers something that releases the key', async (t) => {
    const { app, run, started, runs, stale } = await takenOver(t, clockedStore(), { outcome: () => 'release' })
    const second = post(app, '/pay', 'k')
    await started(2)
    run(2).finish('busy')
    await second
    const third = post(app, '/pay', 'k')
    await started(3)
    for (const { finish } of runs) finish('done')
    await Promise.all([stale, third])
    assert.deepEqual(
      runs.map(({ fence }) => fence),
      [1, 2, 3],
    )
  })

  it('when the answer to the takeover is lost', async (t) => {
    const clocked = clockedStore()
    const { app, started, runs, stale } = await takenOver(t, clocked)
    const { claim } = clocked.store
    clocked.store.claim = async (request) => {
      await claim(request)
      throw new Error('connection reset')
    }
    assert.equal((await post(app, '/pay', 'k')).statusCode, 503)
    clocked.store.claim = claim
    await until('the takeover is given back', () => clocked.calls.includes('fail'))
    const third = post(app, '/pay', 'k')
    await started(2)
    for (const { finish } of runs) finish('done')
    await Promise.all([stale, third])
    assert.deepEqual(
      runs.map(({ fence }) => fence),
      [1, 3],
    )
  })

  it('when an operator frees the key', async (t) => {
    const { app, run, started, runs, stale } = await takenOver(t, clockedStore())
    const second = post(app, '/pay', 'k')
    await started(2)
    assert.equal(await app.idempotency.release(app.idempotency.scopedKey('anonymous', 'POST', '/pay', 'k')), true)
    const third = post(app, '/pay', 'k')
    await started(3)
    assert.equal(run(3).fence, 3)
    for (const { finish } of runs) finish('done')
    await Promise.all([stale, second, third])
  })
})
