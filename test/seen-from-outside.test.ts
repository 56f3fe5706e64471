/** Logs and diagnostics channels: who is told what, and what nobody must ever see. */

import assert from 'node:assert/strict'
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { describe, it, type TestContext } from 'node:test'
import type { FastifyInstance } from 'fastify'
import { Registry } from 'prom-client'
import { type EventType, type IdempotencyOptions, keyDigest, MemoryStore } from '../src/index.ts'
import { createApp, logCollector, post } from './support/app.ts'
import { breakableStore, gate, intercepted, until } from './support/stores.ts'

const LEVELS: Readonly<Record<number, string>> = { 20: 'debug', 30: 'info', 40: 'warn', 50: 'error' }

const CHANNELS: readonly EventType[] = [
  'claim',
  'completion',
  'lease-lost',
  'lease-expired',
  'store-error',
  'record-lost',
  'unprotected',
]

/** Everything published while the test runs. */
function channelCollector(t: TestContext) {
  const messages: Record<string, unknown>[] = []
  const listener = (message: unknown) => void messages.push(message as Record<string, unknown>)
  for (const type of CHANNELS) subscribe(`fastify-idempotency:${type}`, listener)
  t.after(() => {
    for (const type of CHANNELS) unsubscribe(`fastify-idempotency:${type}`, listener)
  })
  return messages
}

/** An app that logs everything, and its lines as "level: message". */
async function loggingApp(t: TestContext, options: IdempotencyOptions = {}) {
  const { lines, logger } = logCollector('trace')
  const app = await createApp(t, options, { logger })
  const said = () =>
    lines
      .filter(({ msg }) => msg.startsWith('idempotency: '))
      .map(({ level, msg }) => `${LEVELS[level]}: ${msg.slice('idempotency: '.length)}`)
  return { app, lines, said }
}

/** A route that answers once the gate is open. */
function gatedRoute(app: FastifyInstance) {
  const { open, opened } = gate()
  let running = 0
  app.post('/pay', async () => {
    running++
    await opened
    return 'paid'
  })
  return { open, running: (count: number) => until(`${count} handlers run`, () => running === count) }
}

describe('the log has one line for', () => {
  it('a claim and its completion, at debug', async (t) => {
    const { app, said } = await loggingApp(t)
    app.post('/pay', async () => 'paid')
    await post(app, '/pay', 'k')
    assert.deepEqual(said(), ['debug: claimed', 'debug: complete'])
  })

  it('a replay, a conflict and a mismatch, at info', async (t) => {
    const { app, said } = await loggingApp(t)
    const { open, running } = gatedRoute(app)
    const first = post(app, '/pay', 'k')
    await running(1)
    await post(app, '/pay', 'k')
    open()
    await first
    await post(app, '/pay', 'k')
    await post(app, '/pay', 'k', { payload: { amount: 1 } })
    assert.deepEqual(
      said().filter((line) => line.startsWith('info')),
      [
        'info: rejected, the first request is still running',
        'info: replayed',
        'info: rejected, the key was used for another request',
      ],
    )
  })

  it('a takeover, and the completion of whoever was taken over, at warn', async (t) => {
    let now = 0
    const { app, said } = await loggingApp(t, { store: new MemoryStore({ now: () => now }) })
    const { open, running } = gatedRoute(app)
    const stale = post(app, '/pay', 'k')
    await running(1)
    now += 30_001
    const next = post(app, '/pay', 'k')
    await running(2)
    open()
    await Promise.all([stale, next])
    assert.deepEqual(
      said().filter((line) => line.startsWith('warn')),
      [
        'warn: found a claim whose owner stopped renewing its lease',
        'warn: took over the claim of a vanished owner',
        'warn: the lease was lost while the handler ran; another attempt may run',
        'warn: complete refused, another attempt owns the record',
      ],
    )
  })

  it('a lease that could not be renewed, at warn', async (t) => {
    const store = intercepted(new MemoryStore(), (operation, perform) =>
      operation === 'renew' ? Promise.resolve(false) : perform(),
    )
    const { app, said } = await loggingApp(t, { store, leaseMs: 30, storeTimeoutMs: 10 })
    const { open } = gatedRoute(app)
    const request = post(app, '/pay', 'k')
    const line = 'warn: the lease was lost while the handler ran; another attempt may run'
    await until('the loss is logged', () => said().includes(line))
    open()
    await request
  })

  it('an answer that came after handlerTimeout, at warn', async (t) => {
    const { app, said } = await loggingApp(t)
    const { open, opened } = gate()
    app.post('/slow', { handlerTimeout: 10 }, () => opened.then(() => 'late'))
    assert.equal((await post(app, '/slow', 'k')).statusCode, 503)
    open()
    await until('the late answer is logged', () => said().includes('warn: late complete'))
  })

  it('a store that fails, at error, and a request that ran without protection, at warn', async (t) => {
    const { store, broken } = breakableStore()
    const { app, said, lines } = await loggingApp(t, { store, onStoreError: 'proceed' })
    app.post('/pay', async () => 'paid')
    broken.add('claim')
    assert.equal((await post(app, '/pay', 'k')).statusCode, 200)
    assert.deepEqual(said(), [
      'error: store operation claim failed',
      'warn: the store does not answer; the request runs unprotected',
    ])
    const failed = lines.find(({ msg }) => msg.includes('store operation claim failed'))
    assert.equal(failed?.['operation'], 'claim')
    assert.equal(failed?.['reason'], 'ECONNREFUSED')
  })

  it('nothing at all at the usual level, when all is well', async (t) => {
    const { lines, logger } = logCollector('info')
    const app = await createApp(t, {}, { logger })
    app.post('/pay', async () => 'paid')
    await post(app, '/pay', 'k')
    assert.deepEqual(
      lines.filter(({ msg }) => msg.startsWith('idempotency')),
      [],
    )
  })
})

it('a log line has the digest that an operator can make of a key', async (t) => {
  const { app, lines } = await loggingApp(t, { credential: () => 'acct_1' })
  app.post('/payments/:id', async () => 'paid')
  await post(app, '/payments/7', 'k')
  const digest = keyDigest(app.idempotency.scopedKey('acct_1', 'POST', '/payments/:id', 'k'))
  assert.match(digest, /^[0-9a-f]{16}$/)
  const claimed = lines.find(({ msg }) => msg === 'idempotency: claimed')
  assert.deepEqual(
    [claimed?.['key_digest'], claimed?.['store'], claimed?.['operation'], claimed?.['idempotency_status']],
    [digest, 'memory', 'claim', 'claimed'],
  )
  assert.equal(typeof claimed?.['duration_ms'], 'number')
})

describe('diagnostics channels', () => {
  it('tell of a request in plain values', async (t) => {
    const messages = channelCollector(t)
    const app = await createApp(t, { credential: () => 'acct_1' })
    app.post('/payments/:id', async () => 'paid')
    await post(app, '/payments/7', 'k')
    const origin = {
      store: 'memory',
      keyDigest: keyDigest(app.idempotency.scopedKey('acct_1', 'POST', '/payments/:id', 'k')),
      requestId: 'req-1',
      method: 'POST',
      route: '/payments/:id',
    }
    const [claim, completion] = messages.map(({ durationMs, ...rest }) => rest)
    assert.deepEqual(claim, { type: 'claim', outcome: 'claimed', ...origin })
    const ending = { outcome: 'complete', isOwner: true, isLate: false, bytes: 4, isReplayable: true }
    assert.deepEqual(completion, { type: 'completion', ...ending, ...origin })
    assert.equal(messages.length, 2)
    assert.equal(typeof messages[0]?.['durationMs'], 'number')
    assert.equal(typeof messages[1]?.['durationMs'], 'number')
  })

  it('tell of a failed store call why it failed, without the error itself', async (t) => {
    const messages = channelCollector(t)
    const { store, broken } = breakableStore()
    const app = await createApp(t, { store })
    app.post('/pay', async () => 'paid')
    broken.add('claim')
    await post(app, '/pay', 'k')
    const failed = messages.find(({ type }) => type === 'store-error')
    assert.deepEqual(
      [failed?.['operation'], failed?.['reason'], failed?.['message']],
      ['claim', 'ECONNREFUSED', 'claim: connection refused'],
    )
    assert.ok(failed && !('error' in failed), 'no error object')
  })
})

describe('a busy app, with every log level, all metrics and all channels on', () => {
  it('shows no key, token, credential or body anywhere', async (t) => {
    const messages = channelCollector(t)
    const registry = new Registry()
    const { lines, logger } = logCollector('trace')
    const { store: breakable, broken } = breakableStore()
    const tokens: string[] = []
    const store = {
      ...breakable,
      claim(request: Parameters<typeof breakable.claim>[0]) {
        tokens.push(request.token)
        return breakable.claim(request)
      },
    }
    const options: IdempotencyOptions = {
      metrics: registry,
      store,
      credential: ({ headers }) => `${headers.authorization}`,
    }
    const app = await createApp(t, options, { logger })
    app.post('/pay/:customer', async () => ({ secret: 'reply-secret' }))
    app.post('/broken', async () => {
      throw new Error('card declined')
    })
    const headers = { authorization: 'Bearer tok-1' }
    const send = (payload = { secret: 'body-secret' }, url = '/pay/customer-7?card=4242') =>
      post(app, url, 'raw-key 1', { headers, payload })
    await send()
    await send()
    await send({ secret: 'body-secret-2' })
    await send(undefined, '/broken')
    await send(undefined, '/broken')
    for (const operation of ['claim', 'complete'] as const) {
      broken.add(operation)
      await post(app, '/pay/customer-8', `raw-key ${operation}`, { headers })
      broken.delete(operation)
    }
    const ours = lines.filter(({ msg }) => msg.startsWith('idempotency'))
    const seen = `${await registry.metrics()}${JSON.stringify(ours)}${JSON.stringify(messages)}`
    const secrets = ['raw-key', 'raw%20key', 'Bearer', 'tok-1', 'body-secret', 'reply-secret', 'customer-7', '4242']
    for (const secret of [...secrets, ...tokens]) assert.ok(!seen.includes(secret), `${secret} was seen`)
    assert.equal(tokens.length, 7)
    assert.ok(ours.length > 10 && messages.length > 10, `${ours.length} lines, ${messages.length} messages`)
  })
})
