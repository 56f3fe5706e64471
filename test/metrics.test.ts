/** What is counted, and where. */

import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { describe, it } from 'node:test'
import { promisify } from 'node:util'
import fastify from 'fastify'
import { register as globalRegistry, Registry } from 'prom-client'
import idempotency, { MemoryStore } from '../src/index.ts'
import { createApp, post } from './support/app.ts'
import { breakableStore, gate, until } from './support/stores.ts'

async function sampleOf(registry: Registry, name: string, labels: Record<string, string> = {}) {
  const metric = await registry.getSingleMetric(name)?.get()
  const found = metric?.values.find((value) => {
    const own: Record<string, unknown> = value.labels
    const isCount = !('metricName' in value) || String(value.metricName).endsWith('_count')
    return isCount && Object.entries(labels).every(([label, text]) => own[label] === text)
  })
  return found?.value ?? 0
}

describe('metrics', () => {
  it('count every outcome, with the store as label', async (t) => {
    const registry = new Registry()
    const { store, broken } = breakableStore()
    const app = await createApp(t, { metrics: registry, store, maxResponseBytes: 10 })
    const { open, opened } = gate()
    app.post('/pay', async () => 'paid')
    app.post('/slow', () => opened.then(() => 'slow'))
    app.post('/large', async () => 'x'.repeat(11))
    await post(app, '/pay', 'k')
    await post(app, '/pay', 'k')
    await post(app, '/pay', 'k', { payload: {} })
    await post(app, '/large', 'k')
    await post(app, '/large', 'k')
    const slow = post(app, '/slow', 'k')
    await until('the slow one runs', async () => (await sampleOf(registry, 'idempotency_pending')) === 1)
    await post(app, '/slow', 'k')
    open()
    await slow
    broken.add('claim')
    await post(app, '/pay', 'other')

    const outcomes = ['claimed', 'replayed', 'mismatch', 'in_progress', 'error']
    const counts = outcomes.map((outcome) =>
      sampleOf(registry, 'idempotency_claims_total', { store: 'memory', outcome }),
    )
    assert.deepEqual(await Promise.all(counts), [3, 2, 1, 1, 1])
    assert.equal(await sampleOf(registry, 'idempotency_pending'), 0)
    assert.equal(await sampleOf(registry, 'idempotency_not_replayable_total'), 1)
    assert.equal(await sampleOf(registry, 'idempotency_registration_duration_ms', { outcome: 'claimed' }), 3)
    assert.equal(await sampleOf(registry, 'idempotency_completion_duration_ms'), 3)
    assert.equal(await sampleOf(registry, 'idempotency_response_bytes'), 2)
    const failed = { operation: 'claim', reason: 'ECONNREFUSED' }
    assert.equal(await sampleOf(registry, 'idempotency_store_errors_total', failed), 1)
    assert.equal(await sampleOf(registry, 'idempotency_store_info'), 1)
  })

  it('are at 0 before anything has happened, because Prometheus sees no growth in what appears at 1', async (t) => {
    const registry = new Registry()
    await createApp(t, { metrics: registry })
    const text = await registry.metrics()
    for (const outcome of ['claimed', 'taken_over', 'replayed', 'in_progress', 'mismatch', 'uncertain', 'error']) {
      assert.ok(text.includes(`idempotency_claims_total{store="memory",outcome="${outcome}"} 0`), outcome)
    }
    for (const name of ['lease_expired', 'lease_lost', 'late_completions', 'unprotected', 'not_replayable']) {
      assert.ok(text.includes(`idempotency_${name}_total{store="memory"} 0`), name)
    }
  })

  it('count a full memory store as refused', async (t) => {
    const registry = new Registry()
    const app = await createApp(t, { metrics: registry, store: new MemoryStore({ maxRecords: 1 }) })
    app.post('/pay', async () => 'paid')
    await post(app, '/pay', 'a')
    await post(app, '/pay', 'b')
    assert.equal(await sampleOf(registry, 'idempotency_store_errors_total', { operation: 'claim', reason: 'full' }), 1)
  })

  it('go to the global registry by default, and to none with false', async () => {
    globalRegistry.clear()
    const silent = fastify()
    await silent.register(idempotency, { metrics: false })
    await silent.close()
    assert.equal(globalRegistry.getSingleMetric('idempotency_claims_total'), undefined)
    const app = fastify()
    await app.register(idempotency)
    await app.close()
    assert.notEqual(globalRegistry.getSingleMetric('idempotency_claims_total'), undefined)
    globalRegistry.clear()
  })

  it('of two plugin instances share a registry', async (t) => {
    const registry = new Registry()
    for (const key of ['a', 'b']) {
      const app = await createApp(t, { metrics: registry })
      app.post('/pay', async () => 'paid')
      await post(app, '/pay', key)
    }
    assert.equal(await sampleOf(registry, 'idempotency_claims_total', { outcome: 'claimed' }), 2)
  })

  it('of two stores share a registry, told apart by their label', async (t) => {
    const registry = new Registry()
    for (const name of ['near', 'far']) {
      const app = await createApp(t, { metrics: registry, store: Object.assign(new MemoryStore(), { name }) })
      app.post('/pay', async () => 'paid')
      await post(app, '/pay', 'k')
    }
    for (const store of ['near', 'far']) {
      assert.equal(await sampleOf(registry, 'idempotency_claims_total', { store, outcome: 'claimed' }), 1, store)
      assert.equal(await sampleOf(registry, 'idempotency_completion_duration_ms', { store }), 1, store)
    }
  })

  it('have as many series after a thousand keys, callers and URLs as after one', async (t) => {
    const registry = new Registry()
    const app = await createApp(t, { metrics: registry, credential: ({ headers }) => `${headers.authorization}` })
    app.post('/pay/:id', async () => 'paid')
    const pay = (n: number) => post(app, `/pay/${n}?n=${n}`, `key-${n}`, { headers: { authorization: `token-${n}` } })
    const seriesOf = async () => (await registry.metrics()).split('\n').filter((line) => /^\w+\{/.test(line)).length
    await pay(0)
    const before = await seriesOf()
    for (let n = 1; n <= 1_000; n++) await pay(n)
    assert.equal(await seriesOf(), before)
    assert.ok(before > 30 && before < 100, `${before} series`)
  })

  it('are scraped without a call to the store, unless it has figures of its own', async (t) => {
    const registry = new Registry()
    const { store, calls } = breakableStore()
    await createApp(t, { metrics: registry, store })
    await registry.metrics()
    assert.deepEqual(calls, [])
  })

  it('do not load prom-client when they are off', async () => {
    const code = `
      const { default: idempotency } = await import('./src/index.ts')
      const { default: fastify } = await import('fastify')
      const app = fastify()
      await app.register(idempotency, { metrics: METRICS })
      const { createRequire } = await import('node:module')
      const loaded = Object.keys(createRequire(import.meta.url).cache).some((path) => path.includes('/prom-client/'))
      console.log(loaded)`
    const isLoadedWith = async (metrics: string) => {
      const args = ['--import', 'tsx', '--input-type=module', '--eval', code.replace('METRICS', metrics)]
      return (await promisify(execFile)(process.execPath, args)).stdout.trim()
    }
    assert.equal(await isLoadedWith('false'), 'false')
    assert.equal(await isLoadedWith('undefined'), 'true')
  })
})
