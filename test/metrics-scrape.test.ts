/** What a scrape shows, whichever way a registry is asked, and what becomes of it after a reset. */

import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import type { FastifyRequest } from 'fastify'
import { AggregatorRegistry, Counter, Gauge, Histogram, Registry } from 'prom-client'
import type { ClaimOutcome, IdempotencyEvent, Listener } from '../src/events.ts'
import { MemoryStore } from '../src/index.ts'
import { metricsListener } from '../src/metrics.ts'

const SUBJECT = { store: 'memory', scopedKey: 'idem#v1#a#POST:/pay#k', request: {} as FastifyRequest }
const DURATIONS = 'idempotency_registration_duration_ms'
const COMPLETIONS = 'idempotency_completion_duration_ms'
const BYTES = 'idempotency_response_bytes'
const CLAIMS = 'idempotency_claims_total'
const PENDING = 'idempotency_pending'

function claimed(outcome: ClaimOutcome, durationMs = 0.2): IdempotencyEvent {
  return { type: 'claim', outcome, durationMs, ...SUBJECT }
}

function completed(bytes: number, durationMs = 0.3): IdempotencyEvent {
  const ending = { outcome: 'complete', isOwner: true, isLate: false, isReplayable: true } as const
  return { type: 'completion', ...ending, bytes, durationMs, ...SUBJECT }
}

async function listenerOn(registry: Registry): Promise<Listener> {
  const listener = await metricsListener(registry, new MemoryStore())
  assert.ok(listener)
  return listener
}

/** On, below and above bounds of buckets, and each outcome once more than the one before it. */
function someEvents(): IdempotencyEvent[] {
  const outcomes = ['claimed', 'taken_over', 'replayed', 'in_progress', 'mismatch', 'uncertain', 'error'] as const
  const claims = outcomes.flatMap((outcome, n) => Array.from({ length: n + 1 }, () => claimed(outcome, 0.25 * n)))
  const durations = [0, 0.04, 0.05, 0.051, 1, 999.5, 1_000, 5_000.25]
  const endings = [0, 127, 128, 129, 65_536, 1_048_576, 1_048_577].map((bytes) => completed(bytes))
  return [...claims, claimed('not_replayable'), ...durations.map((ms) => claimed('replayed', ms)), ...endings]
}

/** Metrics of prom-client's own, under the names and with the buckets that the plugin has. */
function ownOfPromClient(registry: Registry): void {
  const registers = [registry]
  const ms = [0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000]
  const bytes = [128, 512, 1_024, 4_096, 16_384, 65_536, 262_144, 1_048_576]
  const labelNames = ['store', 'outcome']
  new Histogram({ name: DURATIONS, help: 'h', labelNames, buckets: ms, registers })
  new Histogram({ name: COMPLETIONS, help: 'h', labelNames: ['store'], buckets: ms, registers })
  new Histogram({ name: BYTES, help: 'h', labelNames: ['store'], buckets: bytes, registers })
  new Counter({ name: CLAIMS, help: 'h', labelNames, registers })
  new Gauge({ name: PENDING, help: 'h', labelNames: ['store'], registers })
}

/** What Prometheus would read: lines in any order, without the explanations. */
async function linesOf(registry: Registry): Promise<string[]> {
  const text = await registry.metrics()
  return text
    .split('\n')
    .filter((line) => line !== '' && !line.startsWith('# HELP'))
    .sort()
}

/** What other programs read: values in any order. */
async function samplesOf(registry: Registry): Promise<string[]> {
  const metrics = await registry.getMetricsAsJSON()
  const samples = metrics.flatMap(({ name, type, aggregator, values }) =>
    values.map(({ labels, value, ...rest }) => {
      const metricName = 'metricName' in rest ? rest.metricName : name
      return JSON.stringify([name, type, aggregator, metricName, Object.entries(labels).sort(), value])
    }),
  )
  return samples.sort()
}

async function sampleOf(registry: Registry, name: string, labels: Record<string, string> = {}, metricName?: string) {
  const metric = await registry.getSingleMetric(name)?.get()
  const found = metric?.values.find((value) => {
    const own: Record<string, unknown> = value.labels
    const isMeant = metricName === undefined || ('metricName' in value && value.metricName === metricName)
    return isMeant && Object.entries(labels).every(([label, text]) => own[label] === text)
  })
  return found?.value
}

describe('a scrape', () => {
  it('shows each event that happened before it, whichever way the registry is asked', async () => {
    const registry = new Registry()
    const listener = await listenerOn(registry)
    for (let n = 1; n <= 3; n++) {
      listener(claimed('claimed'))
      const claims = `${CLAIMS}{store="memory",outcome="claimed"} ${n}`
      const durations = `${DURATIONS}_count{store="memory",outcome="claimed"} ${n}`
      const text = await registry.metrics()
      assert.ok(text.includes(claims) && text.includes(durations), `metrics() after ${n}`)
      assert.ok((await registry.getSingleMetricAsString(CLAIMS)).includes(claims), `one as text after ${n}`)
      assert.ok((await registry.getSingleMetricAsString(DURATIONS)).includes(durations), `one as text after ${n}`)
      const samples = (await samplesOf(registry)).join('\n')
      assert.ok(samples.includes(`["outcome","claimed"],["store","memory"]],${n}]`), `as JSON after ${n}`)
      assert.equal(await sampleOf(registry, CLAIMS, { outcome: 'claimed' }), n)
      assert.equal(await sampleOf(registry, DURATIONS, { outcome: 'claimed' }, `${DURATIONS}_count`), n)
      assert.equal(await sampleOf(registry, PENDING), n)
    }
    listener(completed(100))
    assert.equal(await sampleOf(registry, PENDING), 2)
    assert.equal(await sampleOf(registry, COMPLETIONS, {}, `${COMPLETIONS}_count`), 1)
    assert.equal(await sampleOf(registry, BYTES, {}, `${BYTES}_sum`), 100)
  })

  for (const contentType of [Registry.PROMETHEUS_CONTENT_TYPE, Registry.OPENMETRICS_CONTENT_TYPE]) {
    it(`reads as if prom-client had counted: ${contentType}`, async () => {
      const registries = [new Registry(), new Registry()] as const
      ownOfPromClient(registries[1])
      for (const registry of registries) {
        registry.setContentType(contentType as typeof Registry.PROMETHEUS_CONTENT_TYPE)
        const listener = await listenerOn(registry)
        for (const event of someEvents()) listener(event)
      }
      const [plain, expected] = await Promise.all(registries.map(linesOf))
      assert.ok((expected?.length ?? 0) > 150, `${expected?.length} lines`)
      assert.deepEqual(plain, expected)
    })
  }

  it('has the default labels of the registry', async () => {
    const registries = [new Registry(), new Registry()] as const
    ownOfPromClient(registries[1])
    for (const registry of registries) {
      registry.setDefaultLabels({ app: 'shop' })
      const listener = await listenerOn(registry)
      for (const event of someEvents()) listener(event)
    }
    const [plain, expected] = await Promise.all(registries.map(samplesOf))
    assert.ok(expected?.every((sample) => sample.includes('"shop"')))
    assert.deepEqual(plain, expected)
    assert.match(await registries[0].metrics(), /idempotency_pending\{store="memory",app="shop"\} -4\n/)
  })

  it('of a cluster adds up what its workers counted', async () => {
    const workers = await Promise.all(
      [1, 2].map(async (times) => {
        const registry = new Registry()
        const listener = await listenerOn(registry)
        for (let n = 0; n < times; n++) listener(claimed('claimed', 0.2))
        return JSON.parse(JSON.stringify(await registry.getMetricsAsJSON())) as object
      }),
    )
    const text = await AggregatorRegistry.aggregate(workers as object[]).metrics()
    for (const line of [
      '# TYPE idempotency_registration_duration_ms histogram',
      'idempotency_claims_total{store="memory",outcome="claimed"} 3',
      'idempotency_claims_total{store="memory",outcome="replayed"} 0',
      'idempotency_registration_duration_ms_bucket{le="0.1",store="memory",outcome="claimed"} 0',
      'idempotency_registration_duration_ms_bucket{le="0.25",store="memory",outcome="claimed"} 3',
      'idempotency_registration_duration_ms_bucket{le="+Inf",store="memory",outcome="claimed"} 3',
      'idempotency_registration_duration_ms_count{store="memory",outcome="claimed"} 3',
      'idempotency_pending{store="memory"} 3',
    ]) {
      assert.ok(text.includes(`${line}\n`), line)
    }
  })

  it('of merged registries has them, too', async () => {
    const registry = new Registry()
    const listener = await listenerOn(registry)
    const merged = Registry.merge([registry, new Registry()])
    listener(claimed('claimed'))
    assert.equal(await sampleOf(merged, CLAIMS, { outcome: 'claimed' }), 1)
    assert.deepEqual(await linesOf(merged), await linesOf(registry))
  })

  it('adds up all plugin instances on one store', async () => {
    const registry = new Registry()
    const listeners = [await listenerOn(registry), await listenerOn(registry)]
    for (const listener of listeners) listener(claimed('claimed'))
    assert.equal(await sampleOf(registry, PENDING), 2)
    assert.equal(await sampleOf(registry, DURATIONS, {}, `${DURATIONS}_count`), 2)
    const { length } = (await linesOf(registry)).filter((line) => line.startsWith(`${DURATIONS}_count`))
    assert.equal(length, 1)
  })

  it('that never comes costs no memory', async () => {
    setFlagsFromString('--expose-gc')
    const collectGarbage = runInNewContext('gc') as () => void
    const listener = await listenerOn(new Registry())
    const used = (times: number) => {
      for (let n = 0; n < times; n++) {
        listener(claimed('claimed', n / 1_000))
        listener(completed(n))
      }
      collectGarbage()
      return process.memoryUsage().heapUsed + process.memoryUsage().arrayBuffers
    }
    const before = used(10_000)
    const grown = used(300_000) - before
    assert.ok(grown < 1_000_000, `${grown} bytes more after 600,000 events`)
  })
})

describe('a reset of metrics', () => {
  it('lets counts begin at 0 again, and goes on counting', async () => {
    const registry = new Registry()
    const listener = await listenerOn(registry)
    for (const event of someEvents()) listener(event)
    registry.resetMetrics()
    assert.equal(await sampleOf(registry, CLAIMS, { outcome: 'replayed' }), 0)
    for (const name of [DURATIONS, COMPLETIONS, BYTES]) assert.equal(await sampleOf(registry, name), undefined, name)
    listener(claimed('claimed', 0.2))
    listener(completed(10, 0.2))
    assert.equal(await sampleOf(registry, CLAIMS, { outcome: 'claimed' }), 1)
    assert.equal(await sampleOf(registry, DURATIONS, {}, `${DURATIONS}_count`), 1)
    assert.equal(await sampleOf(registry, COMPLETIONS, {}, `${COMPLETIONS}_sum`), 0.2)
    assert.equal(await sampleOf(registry, BYTES, {}, `${BYTES}_sum`), 10)
  })

  it('of a single one leaves the others alone', async () => {
    const registry = new Registry()
    const listener = await listenerOn(registry)
    listener(claimed('claimed'))
    registry.getSingleMetric(CLAIMS)?.reset()
    assert.equal(await sampleOf(registry, CLAIMS, { outcome: 'claimed' }), 0)
    assert.equal(await sampleOf(registry, DURATIONS, {}, `${DURATIONS}_count`), 1)
  })

  it('does not forget the handlers that still run, so that pending never falls below 0', async () => {
    const registry = new Registry()
    const listener = await listenerOn(registry)
    listener(claimed('claimed'))
    registry.resetMetrics()
    assert.equal(await sampleOf(registry, PENDING), 1)
    listener(completed(10))
    assert.equal(await sampleOf(registry, PENDING), 0)
  })

  it('by clearing the registry leaves it to plugin instances that come later', async () => {
    const registry = new Registry()
    const earlier = await listenerOn(registry)
    earlier(claimed('claimed'))
    registry.clear()
    const later = await listenerOn(registry)
    earlier(claimed('claimed'))
    later(claimed('claimed'))
    assert.equal(await sampleOf(registry, CLAIMS, { outcome: 'claimed' }), 1)
    assert.equal(await sampleOf(registry, DURATIONS, {}, `${DURATIONS}_count`), 1)
    assert.equal(await sampleOf(registry, PENDING), 1)
  })
})
