/** A DynamoDB that throttles or fails: waited out in time, counted, told. */

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, it } from 'node:test'
import { Registry } from 'prom-client'
import { logWarning } from '../src/logs.ts'
import { createApp, logCollector, post } from './support/app.ts'
import { claimed, responseOf, testBed } from './support/dynamodb/bed.ts'
import { proxied } from './support/dynamodb/proxied.ts'
import { request } from './support/requests.ts'

const bed = testBed()

describe('a DynamoDB that throttles or fails', () => {
  const answers = [
    { status: 400, error: 'ProvisionedThroughputExceededException' },
    { status: 400, error: 'ThrottlingException' },
    { status: 400, error: 'RequestLimitExceeded' },
    { status: 400, error: 'TransactionConflictException' },
    { status: 500, error: 'InternalServerError' },
    { status: 503, error: 'ServiceUnavailable' },
    { status: 502, error: 'HTTP502', body: '<html>a gateway</html>' },
  ]
  for (const answer of answers) {
    it(`${answer.error}: sent again after a pause, counted each time and warned of once`, async (t) => {
      const { proxy, store, figures, warnings } = await proxied(bed, t, { options: { timeoutMs: 5_000 } })
      proxy.answer(3, answer)
      const claim = await claimed(store)
      assert.equal(proxy.requests.length, 4)
      assert.equal(figures['idempotency_dynamodb_throttled_total claim'], 3)
      assert.equal(figures['idempotency_dynamodb_conditional_check_failed_total claim'], undefined)
      const [warning] = warnings
      assert.equal(warnings.length, 1)
      assert.deepEqual(warning?.fields, { dynamo_error_code: answer.error })
      proxy.answer(2, answer)
      assert.equal(await store.complete(claim, responseOf('paid'), 60_000), true)
      assert.equal(figures['idempotency_dynamodb_throttled_total complete'], 2)
    })

    it(`${answer.error}: an error when the time is over, not before and not much later`, async (t) => {
      const { proxy, store } = await proxied(bed, t, { options: { timeoutMs: 500 } })
      proxy.answer(Number.POSITIVE_INFINITY, answer)
      const startedAt = performance.now()
      await assert.rejects(store.claim(request()), { code: answer.error, name: 'DynamoDBError' })
      const elapsedMs = performance.now() - startedAt
      assert.ok(elapsedMs < 900, `${elapsedMs} ms`)
      assert.ok(proxy.requests.length >= 3, 'it was given up at once')
      assert.ok(proxy.requests.length < 100, `${proxy.requests.length} requests: it did not pause`)
    })
  }

  it('that falls silent after it has throttled: the error is the throttling, which says more than a timeout', async (t) => {
    const { proxy, store } = await proxied(bed, t, { options: { timeoutMs: 500 } })
    store.onWarning(() => proxy.blackhole())
    proxy.answer(1, { status: 400, error: 'ThrottlingException' })
    await assert.rejects(store.claim(request()), { code: 'ThrottlingException' })
    assert.equal(proxy.requests.length, 2, 'it was not sent again')
  })

  it('no pause is begun that would outlast the time: the error comes at once', async (t) => {
    const { proxy, store } = await proxied(bed, t, { options: { timeoutMs: 2_000 } })
    proxy.answer(Number.POSITIVE_INFINITY, { status: 400, error: 'ThrottlingException' })
    t.mock.method(Math, 'random', () => 200) // of 20 ms
    const startedAt = performance.now()
    await assert.rejects(store.claim(request()), { code: 'ThrottlingException' })
    assert.ok(performance.now() - startedAt < 1_500, 'it paused')
    assert.equal(proxy.requests.length, 1)
  })

  it('pauses are random, so that callers who were throttled together do not come back together', async (t) => {
    const { proxy, store } = await proxied(bed, t, { options: { timeoutMs: 5_000 } })
    const durations: number[] = []
    for (let call = 0; call < 8; call++) {
      proxy.answer(4, answers[0] as (typeof answers)[number])
      const startedAt = performance.now()
      await claimed(store)
      durations.push(performance.now() - startedAt)
    }
    const longestMs = 20 + 40 + 80 + 160
    assert.ok(Math.min(...durations) < longestMs - 10, `all took the longest pauses: ${durations}`)
  })

  it("with the SDK's own attempts on, throttling that passes is not even seen", async (t) => {
    const { proxy, store, warnings } = await proxied(bed, t, { config: {}, options: { timeoutMs: 5_000 } })
    proxy.answer(2, { status: 400, error: 'ThrottlingException' })
    await claimed(store)
    assert.equal(proxy.requests.length, 3)
    assert.deepEqual(warnings, [])
  })

  it('other errors are not sent again: denied, no such table', async (t) => {
    const { proxy, store } = await proxied(bed, t)
    for (const error of ['AccessDeniedException', 'ResourceNotFoundException', 'ValidationException']) {
      proxy.requests.length = 0
      proxy.answer(1, { status: 400, error })
      await assert.rejects(store.claim(request()), { code: error })
      assert.equal(proxy.requests.length, 1)
    }
  })

  it('is 503 for the client, with the name of the error in log and metrics, and no key in the log', async (t) => {
    const { proxy, store } = await proxied(bed, t)
    const registry = new Registry()
    const { lines, logger } = logCollector()
    const app = await createApp(t, { store, metrics: registry, storeTimeoutMs: 2_000 }, { logger })
    app.post('/pay', async () => 'paid')
    await app.ready()
    proxy.answer(Number.POSITIVE_INFINITY, { status: 400, error: 'ThrottlingException' })
    const key = `key-in-the-log-${randomUUID()}`
    const refused = await post(app, '/pay', key)
    assert.equal(refused.statusCode, 503)
    assert.equal(refused.json().code, 'FST_IDEMPOTENCY_STORE_UNAVAILABLE')
    const line = lines.find(({ msg }) => msg.includes('store operation claim failed'))
    assert.equal(line?.['dynamo_error_code'], 'ThrottlingException')
    assert.equal(line?.['reason'], 'ThrottlingException')
    assert.ok(!JSON.stringify(lines).includes(key), 'the key is in the log')
    const text = await registry.metrics()
    assert.match(text, /store_errors_total\{store="dynamodb",operation="claim",reason="ThrottlingException"\} 1/)
    assert.match(text, /dynamodb_throttled_total\{store="dynamodb",operation="claim"\} [1-9]/)
    proxy.pass()
  })

  it('a warning is one line with a digest of the key', async (t) => {
    const { proxy, store, warnings } = await proxied(bed, t)
    const { lines, logger } = logCollector()
    const app = await createApp(t, {}, { logger })
    proxy.answer(1, { status: 400, error: 'ThrottlingException' })
    await claimed(store, request('the-key'))
    for (const warning of warnings) logWarning(app.log, store.name, warning)
    const [line] = lines.filter(({ level }) => level === 40)
    assert.match(line?.msg ?? '', /^idempotency: DynamoDB throttled claim/)
    assert.equal(line?.['dynamo_error_code'], 'ThrottlingException')
    assert.equal(line?.['operation'], 'claim')
    assert.equal(line?.['store'], 'dynamodb')
    assert.match(String(line?.['key_digest']), /^[0-9a-f]{16}$/)
    assert.ok(!JSON.stringify(lines).includes('the-key'), 'the key is in the log')
  })
})

describe('metrics', () => {
  it('of two plugin instances on one store and one registry count each call once', async (t) => {
    const { store } = await proxied(bed, t)
    const registry = new Registry()
    const app = await createApp(t, { store, metrics: registry })
    await createApp(t, { store, metrics: registry })
    app.post('/pay', async () => 'paid')
    const key = randomUUID()
    await post(app, '/pay', key)
    await post(app, '/pay', key)
    const lines = (await registry.metrics()).split('\n')
    const sampleOf = (series: string) => lines.find((line) => line.startsWith(`${series} `))?.split(' ')[1]
    const one = '{store="dynamodb",operation="complete"}'
    assert.equal(sampleOf('idempotency_expired_blocked_total{store="dynamodb"}'), '0', 'there from the start')
    assert.equal(sampleOf(`idempotency_dynamodb_consumed_capacity_units_total${one}`), '1')
    assert.equal(sampleOf(`idempotency_dynamodb_request_duration_ms_count${one}`), '1')
    assert.equal(sampleOf('idempotency_dynamodb_item_bytes_count{store="dynamodb"}'), '1')
    const claims = '{store="dynamodb",operation="claim"}'
    assert.equal(sampleOf(`idempotency_dynamodb_consumed_capacity_units_total${claims}`), '2')
    assert.equal(sampleOf(`idempotency_dynamodb_conditional_check_failed_total${claims}`), '1')
    assert.ok(lines.includes('# TYPE idempotency_dynamodb_request_duration_ms histogram'))
    assert.ok(lines.includes('# TYPE idempotency_dynamodb_throttled_total counter'))
  })

  it('reach every registry that listens', async (t) => {
    const { store } = await proxied(bed, t)
    const registries = [new Registry(), new Registry()]
    for (const metrics of registries) await createApp(t, { store, metrics }).then((app) => app.ready())
    await claimed(store)
    for (const registry of registries) {
      assert.match(await registry.metrics(), /request_duration_ms_count\{store="dynamodb",operation="claim"\} 1/)
    }
  })
})
