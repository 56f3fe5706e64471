/** Options that decide what a request means, set per route. */

import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import type { IdempotencyRecord } from '../src/index.ts'
import { createApp, logCollector, post } from './support/app.ts'
import { gate, until, watchedStore } from './support/stores.ts'

describe('outcome', () => {
  it('can keep a failure (as Stripe does), with the error at hand', async (t) => {
    const errors: (string | undefined)[] = []
    const app = await createApp(t)
    let runs = 0
    const outcome = (_request: unknown, _reply: unknown, error?: Error) => {
      errors.push(error?.message)
      return 'complete' as const
    }
    app.post('/pay', { config: { idempotency: { outcome } } }, async () => {
      throw new Error(`declined ${++runs}`)
    })
    const first = await post(app, '/pay', 'k')
    const retry = await post(app, '/pay', 'k')
    assert.deepEqual([first.statusCode, retry.statusCode], [500, 500])
    assert.equal(retry.body, first.body)
    assert.equal(retry.headers['idempotent-replayed'], 'true')
    assert.deepEqual(errors, ['declined 1'])
  })

  it('can forget a success', async (t) => {
    const { store, calls } = watchedStore()
    const app = await createApp(t, { store })
    app.post('/pay', { config: { idempotency: { outcome: () => 'release' } } }, async () => 'paid')
    await post(app, '/pay', 'k')
    await post(app, '/pay', 'k')
    assert.deepEqual(calls, ['claim', 'release', 'claim', 'release'])
  })

  for (const [name, outcome] of [
    ['throws', () => assert.fail('mine')],
    ['returns nonsense', () => 'keep'],
    ['returns a promise', async () => 'release'],
  ] as const) {
    it(`that ${name} is logged, and the default applies`, async (t) => {
      const { lines, logger } = logCollector('error')
      const app = await createApp(t, { outcome: outcome as never }, { logger })
      app.post('/pay', async () => 'paid')
      assert.equal((await post(app, '/pay', 'k')).body, 'paid')
      assert.equal((await post(app, '/pay', 'k')).headers['idempotent-replayed'], 'true')
      assert.match(lines.map(({ msg }) => msg).join(), /outcome\(\)/)
    })
  }
})

describe('onReplay', () => {
  it('sees the record, and can refuse the replay', async (t) => {
    const records: IdempotencyRecord[] = []
    let isRevoked = false
    const app = await createApp(t)
    const onReplay = async (_request: unknown, record: IdempotencyRecord) => {
      records.push(record)
      if (isRevoked) throw Object.assign(new Error('permission revoked'), { statusCode: 403 })
    }
    app.post('/pay', { config: { idempotency: { onReplay } } }, async (_request, reply) => reply.code(201).send('paid'))
    await post(app, '/pay', 'k')
    assert.equal((await post(app, '/pay', 'k')).body, 'paid')
    assert.deepEqual([records[0]?.state, records[0]?.response?.statusCode], ['completed', 201])
    isRevoked = true
    const refused = await post(app, '/pay', 'k')
    assert.equal(refused.statusCode, 403)
    assert.equal(refused.headers['idempotent-replayed'], undefined)
    assert.doesNotMatch(refused.body, /paid/)
  })
})

describe('onInProgress: { waitMs }', () => {
  it('a duplicate waits and gets the first answer', async (t) => {
    const { open, opened } = gate()
    const { store, calls } = watchedStore()
    const app = await createApp(t, { store, onInProgress: { waitMs: 5_000 } })
    let runs = 0
    app.post('/pay', () => opened.then(() => ({ run: ++runs })))
    const requests = [1, 2, 3].map(() => post(app, '/pay', 'k'))
    await until('all have tried', () => calls.filter((call) => call === 'claim').length === 3)
    open()
    const bodies = (await Promise.all(requests)).map(({ body }) => body)
    assert.deepEqual(bodies, ['{"run":1}', '{"run":1}', '{"run":1}'])
  })

  it('a duplicate waits no longer than waitMs', async (t) => {
    const { open, opened } = gate()
    const app = await createApp(t)
    app.post('/pay', { config: { idempotency: { onInProgress: { waitMs: 30 } } } }, () => opened.then(() => 'paid'))
    const first = post(app, '/pay', 'k')
    const duplicate = await post(app, '/pay', 'k')
    assert.equal(duplicate.json().code, 'FST_IDEMPOTENCY_IN_PROGRESS')
    assert.ok(Number(duplicate.headers['retry-after']) >= 1)
    open()
    assert.equal((await first).body, 'paid')
  })

  it('another request with the key does not wait: 422 at once', async (t) => {
    const { open, opened } = gate()
    const app = await createApp(t, { onInProgress: { waitMs: 60_000 } })
    app.post('/pay', () => opened.then(() => 'paid'))
    const first = post(app, '/pay', 'k')
    assert.equal((await post(app, '/pay', 'k', { payload: {} })).statusCode, 422)
    open()
    await first
  })

  it('when the first attempt fails, exactly one waiting duplicate runs and the others get its answer', async (t) => {
    const { open, opened } = gate()
    const { store, calls } = watchedStore()
    const app = await createApp(t, { store, onInProgress: { waitMs: 5_000 } })
    let runs = 0
    app.post('/pay', async () => {
      const run = ++runs
      await opened
      if (run === 1) throw new Error('declined')
      return { run }
    })
    const requests = Array.from({ length: 5 }, () => post(app, '/pay', 'k'))
    await until('all have tried', () => calls.filter((call) => call === 'claim').length === 5)
    open()
    const bodies = (await Promise.all(requests)).map(({ body }) => body)
    assert.match(bodies[0] ?? '', /declined/)
    assert.deepEqual(new Set(bodies.slice(1)), new Set(['{"run":2}']))
    assert.equal(runs, 2)
  })

  it('an owner in another process is seen by looking, once for all that wait', async (t) => {
    const { store, calls, inner } = watchedStore()
    const app = await createApp(t, { store, onInProgress: { waitMs: 10_000 } })
    app.post('/pay', async () => assert.fail('the other process has the key'))
    const other = await createApp(t, { store: inner })
    const { open, opened } = gate()
    other.post('/pay', () => opened.then(() => 'paid'))
    const first = post(other, '/pay', 'k')
    await until(
      'the other process has claimed',
      async () => (await inner.read('idem#v1#anonymous#POST:/pay#k')) !== undefined,
    )
    const waiting = Array.from({ length: 20 }, () => post(app, '/pay', 'k'))
    await until('they look', () => calls.includes('read'))
    open()
    await first
    for (const { body } of await Promise.all(waiting)) assert.equal(body, 'paid')
    assert.ok(calls.filter((call) => call === 'read').length < 10)
  })
})

describe('request.idempotency', () => {
  it('gives a derived key that every retry and takeover shares, and nobody else', async (t) => {
    const app = await createApp(t, { credential: (request) => String(request.headers['x-account']) })
    const derived: string[] = []
    app.post('/pay', async (request) => {
      derived.push(request.idempotency?.derive('psp') ?? '', request.idempotency?.derive('mail') ?? '')
      throw new Error('declined')
    })
    const as = (account: string, key: string) => post(app, '/pay', key, { headers: { 'x-account': account } })
    for (const [account, key] of [
      ['a', 'k'],
      ['a', 'k'],
      ['b', 'k'],
      ['a', 'l'],
    ] as const)
      await as(account, key)
    const [psp, mail, pspAgain, mailAgain, ...others] = derived
    assert.deepEqual([pspAgain, mailAgain], [psp, mail])
    assert.equal(new Set([psp, mail, ...others]).size, 6)
    assert.match(psp ?? '', /^[A-Za-z0-9_-]{43}$/)
  })

  it('refuses to derive from nothing', async (t) => {
    const app = await createApp(t)
    app.post('/pay', async (request) => request.idempotency?.derive(''))
    assert.match((await post(app, '/pay', 'k')).body, /derive\(name\) takes a non-empty string/)
  })

  it('says replayed to the hooks of a replay, and has fence 1 in a first run', async (t) => {
    const seen: unknown[] = []
    const app = await createApp(t)
    app.addHook(
      'onSend',
      async (request) => void seen.push([request.idempotency?.replayed, request.idempotency?.fence]),
    )
    app.post('/pay', async () => 'paid')
    await post(app, '/pay', 'k')
    await post(app, '/pay', 'k')
    assert.deepEqual(seen, [
      [false, 1],
      [true, 0],
    ])
  })
})

describe('storeHeaders', () => {
  it('chooses among what the deny list leaves', async (t) => {
    const offered: string[] = []
    const app = await createApp(t, { storeHeaders: (name) => offered.push(name) > 0 && name !== 'x-trace' })
    app.addHook('onRequest', async (_request, reply) => void reply.header('x-request', 'fresh'))
    app.post('/pay', async (_request, reply) => {
      reply.headers({
        'x-trace': '1',
        'x-kept': '2',
        'set-cookie': 'a=b',
        date: 'x',
        connection: 'close',
        'keep-alive': '1',
      })
      return 'paid'
    })
    await post(app, '/pay', 'k')
    const { headers } = await post(app, '/pay', 'k')
    assert.deepEqual(offered.sort(), ['content-type', 'x-kept', 'x-trace'])
    assert.deepEqual(
      [headers['x-kept'], headers['x-trace'], headers['set-cookie'], headers['keep-alive'], headers['x-request']],
      ['2', undefined, undefined, undefined, 'fresh'],
    )
  })

  it('that throws costs the replay, not the reply', async (t) => {
    const app = await createApp(t, { storeHeaders: () => assert.fail('mine') })
    app.post('/pay', async () => 'paid')
    assert.equal((await post(app, '/pay', 'k')).body, 'paid')
    assert.equal((await post(app, '/pay', 'k')).json().code, 'FST_IDEMPOTENCY_NOT_REPLAYABLE')
  })
})
