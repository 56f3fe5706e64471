/** Wrong settings fail at register or route time, and say which option and what it takes. */

import assert from 'node:assert/strict'
import { describe, it, type TestContext } from 'node:test'
import fastify from 'fastify'
import idempotency, { type IdempotencyOptions, MemoryStore } from '../src/index.ts'
import { createApp, logCollector, post } from './support/app.ts'

const wrong: [option: string, ...values: unknown[]][] = [
  ['store', 'redis', {}, null, { name: 'x', claim() {} }],
  ['credential', 'x-account', {}],
  ['header', '', 'two words', 7, 'a:b'],
  ['required', 'yes', 1, null],
  ['methods', 'POST', ['GET'], ['post', 'head'], ['OPTIONS'], ['TRACE'], [7], ['']],
  ['global', 'false'],
  ['strict', 0],
  ['validateKey', /abc/],
  ['fingerprint', 'body'],
  ['ignoreFields', 'trace_id', [1], ['']],
  ['leaseMs', 0, -1, 1.5, '30s', Number.NaN, Number.POSITIVE_INFINITY, 2 ** 31],
  ['ttlMs', 0, -1, '24h', Number.NaN, Number.POSITIVE_INFINITY],
  ['failedTtlMs', 0, '1'],
  ['onInProgress', 'wait', {}, { waitMs: 0 }, { waitMs: '5s' }, { waitMs: 5, other: 1 }, null],
  ['onLeaseExpired', 'retry', true],
  ['onStoreError', 'open', true],
  ['storeTimeoutMs', 0, 2 ** 31, '1s'],
  ['outcome', 'complete'],
  ['onReplay', true],
  ['maxResponseBytes', -1, 1.5, '1mb'],
  ['storeHeaders', ['etag']],
  ['rejectWith', 'json'],
  ['documentationUrl', '/docs', 'not a url', 7, 'https://example.com/a b'],
  ['metrics', true, {}, 'prom'],
]

const registerOnly = ['store', 'methods', 'global', 'metrics']

const register = async (options: object) => {
  const app = fastify()
  try {
    await app.register(idempotency, options as IdempotencyOptions)
  } finally {
    await app.close()
  }
}

describe('options', () => {
  for (const [option, ...values] of wrong) {
    it(`${option}: a wrong value fails at register`, async () => {
      for (const value of values) {
        await assert.rejects(register({ [option]: value }), (error: Error & { code: string }) => {
          assert.equal(error.code, 'FST_IDEMPOTENCY_INVALID_OPTION')
          assert.match(error.message, new RegExp(`option "${option}" \\(register\\) takes .+, got .+`))
          return true
        })
      }
    })

    it(`${option}: a wrong value in config.idempotency fails at the route`, async (t) => {
      const app = await createApp(t)
      const config = { idempotency: { [option]: values[0] } }
      const says = registerOnly.includes(option) ? /is for register, not for a route/ : /takes .+, got /
      assert.throws(
        () => app.post('/pay', { config }, async () => 'paid'),
        (error: Error) => {
          assert.match(error.message, new RegExp(`option "${option}" \\(POST /pay\\)`))
          assert.match(error.message, says)
          return true
        },
      )
    })
  }

  it('a misspelt option is not silence', async (t) => {
    await assert.rejects(register({ leasMs: 1 }), /unknown option "leasMs" \(register\); known options: .*leaseMs/)
    const app = await createApp(t)
    const config = { idempotency: { tllMs: 1 } as object }
    assert.throws(
      () => app.post('/pay', { config }, async () => 'paid'),
      /unknown option "tllMs" \(POST \/pay\).*ttlMs/,
    )
    await assert.rejects(register({ constructor: 1 }), /unknown option "constructor"/)
  })

  it('config.idempotency takes a boolean or an object', async (t) => {
    const app = await createApp(t)
    for (const value of ['yes', 1, null, [], () => true]) {
      const config = { idempotency: value as unknown as boolean }
      assert.throws(() => app.post('/pay', { config }, async () => 'paid'), /config\.idempotency of POST \/pay takes/)
    }
  })

  it('undefined means the default, and Fastify own register options pass', async () => {
    await register({ leaseMs: undefined, store: undefined, prefix: '/v1', logLevel: 'warn' })
  })

  it('a change to the options object after register changes nothing', async (t) => {
    const options: IdempotencyOptions = { required: false }
    const app = await createApp(t, options)
    app.post('/pay', async () => 'paid')
    options.required = true
    assert.equal((await post(app, '/pay', undefined)).statusCode, 200)
  })

  it('a route overrides what register said', async (t) => {
    const app = await createApp(t, { required: true, maxResponseBytes: 1 })
    const config = { idempotency: { required: false, maxResponseBytes: 100 } }
    app.post('/pay', { config }, async () => 'paid')
    assert.equal((await post(app, '/pay', undefined)).statusCode, 200)
    await post(app, '/pay', 'k')
    assert.equal((await post(app, '/pay', 'k')).body, 'paid')
  })
})

describe('start-up warnings', () => {
  const warningsOf = async (options: IdempotencyOptions, route = {}, server = {}) => {
    const { lines, logger } = logCollector('warn')
    const app = fastify({ logger, ...server })
    await app.register(idempotency, { metrics: false, ...options })
    app.post('/pay', route, async () => 'paid')
    await app.ready()
    await app.close()
    return lines.map(({ msg }) => msg)
  }

  it('none for the defaults', async () => assert.deepEqual(await warningsOf({}), []))

  it('the memory store in production', async (t) => {
    const before = process.env['NODE_ENV']
    t.after(() => {
      if (before === undefined) delete process.env['NODE_ENV']
      else process.env['NODE_ENV'] = before
    })
    process.env['NODE_ENV'] = 'production'
    assert.match((await warningsOf({})).join(), /memory store .* NODE_ENV=production/)
  })

  it('a lease that a store call can outlive', async () => {
    assert.match((await warningsOf({ leaseMs: 1_000, storeTimeoutMs: 1_000 })).join(), /leaseMs.*storeTimeoutMs/)
    const perRoute = { config: { idempotency: { leaseMs: 500 } } }
    assert.match((await warningsOf({}, perRoute)).join(), /\/pay.*leaseMs.*storeTimeoutMs/)
  })

  it('a lease shorter than handlerTimeout', async () => {
    const expected = /\/pay.*leaseMs.*handlerTimeout/
    assert.match((await warningsOf({ leaseMs: 5_000 }, { handlerTimeout: 6_000 })).join(), expected)
    assert.match((await warningsOf({ leaseMs: 5_000 }, {}, { handlerTimeout: 6_000 })).join(), expected)
  })

  it('a TTL shorter than the lease', async () => {
    assert.match((await warningsOf({ ttlMs: 10_000 })).join(), /ttlMs.*leaseMs/)
  })

  it('config.idempotency on a route that is never covered', async () => {
    const { lines, logger } = logCollector('warn')
    const app = fastify({ logger, exposeHeadRoutes: false })
    await app.register(idempotency, { metrics: false })
    app.get('/pay', { config: { idempotency: true } }, async () => 'paid')
    await app.close()
    assert.match(lines.map(({ msg }) => msg).join(), /GET \/pay .*never covered/)
  })

  const warningOfRequest = async (t: TestContext, headers: Record<string, string>, payload = '') => {
    const { lines, logger } = logCollector('warn')
    const app = await createApp(t, {}, { logger })
    app.addContentTypeParser('application/x-upload', (_request, _payload, done) => done(null, undefined))
    app.post('/pay', async () => 'paid')
    for (const key of ['a', 'b']) await post(app, '/pay', key, { headers, payload })
    return lines.map(({ msg }) => msg)
  }

  it('callers that only a cookie tells apart, once', async (t) => {
    const [warning, ...more] = await warningOfRequest(t, { cookie: 'session=1' })
    assert.match(warning ?? '', /anonymous caller.*"credential"/)
    assert.deepEqual(more, [])
    assert.deepEqual(await warningOfRequest(t, { cookie: 'session=1', authorization: 'Bearer a' }), [])
  })

  it('a body that is no part of the fingerprint, once', async (t) => {
    const [warning, ...more] = await warningOfRequest(t, { 'content-type': 'application/x-upload' }, 'x')
    assert.match(warning ?? '', /\/pay: the body is read by the handler.*"fingerprint"/)
    assert.deepEqual(more, [])
    assert.deepEqual(await warningOfRequest(t, {}), [])
  })

  it('routes that were added before the plugin had loaded', async () => {
    const { lines, logger } = logCollector('warn')
    const app = fastify({ logger })
    app.register(idempotency, { metrics: false })
    app.post('/pay', async () => 'paid')
    await app.ready()
    await app.close()
    assert.match(lines.map(({ msg }) => msg).join(), /POST routes were added before.*await app\.register/)
  })

  it('what the store warns of; and a store that refuses stops the start', async () => {
    const store = new MemoryStore()
    store.check = async () => ['this store evicts']
    assert.match((await warningsOf({ store })).join(), /this store evicts/)
    store.check = async () => {
      throw new Error('maxmemory-policy is allkeys-lru')
    }
    await assert.rejects(warningsOf({ store }), /allkeys-lru/)
  })
})
