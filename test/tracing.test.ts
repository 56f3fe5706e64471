/** The OpenTelemetry example, with the SDK's own exporter. */

import assert from 'node:assert/strict'
import { before, beforeEach, test } from 'node:test'
import { context, type Span, SpanStatusCode, trace } from '@opentelemetry/api'
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks'
import { BasicTracerProvider, InMemorySpanExporter, SimpleSpanProcessor } from '@opentelemetry/sdk-trace-base'
import { traceIdempotency } from '../examples/tracing.ts'
import { keyDigest } from '../src/index.ts'
import { createApp, post } from './support/app.ts'
import { breakableStore } from './support/stores.ts'

const exporter = new InMemorySpanExporter()
const provider = new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] })

before(() => {
  context.setGlobalContextManager(new AsyncLocalStorageContextManager())
  trace.setGlobalTracerProvider(provider)
})
beforeEach(() => exporter.reset())

/** One POST inside a span, as HTTP instrumentation makes one for each request. */
function traced(send: () => Promise<unknown>): Promise<void> {
  return trace.getTracer('test').startActiveSpan('POST', async (span: Span) => {
    await send()
    span.end()
  })
}

/** Finished spans as plain values, in the order in which they ended. */
function spans() {
  return exporter.getFinishedSpans().map((span) => ({
    name: span.name,
    parent: span.parentSpanContext?.spanId,
    id: span.spanContext().spanId,
    attributes: span.attributes,
    status: span.status.code,
    events: span.events.map(({ name, attributes }) => ({ name, attributes })),
    durationMs: span.duration[0] * 1e3 + span.duration[1] / 1e6,
  }))
}

test('a claim and its completion are spans inside the span of the request', async (t) => {
  t.after(traceIdempotency())
  const app = await createApp(t, { credential: () => 'acct_1' })
  app.post('/payments/:id', async () => 'paid')
  await traced(() => post(app, '/payments/7', 'k'))
  const [claim, completion, request] = spans()
  assert.deepEqual(
    [claim?.name, completion?.name, request?.name],
    ['idempotency.claim', 'idempotency.completion', 'POST'],
  )
  assert.equal(claim?.parent, request?.id)
  assert.equal(completion?.parent, request?.id)
  assert.deepEqual(claim?.attributes, {
    'http.request.method': 'POST',
    'http.route': '/payments/:id',
    'idempotency.store': 'memory',
    'idempotency.key_digest': keyDigest(app.idempotency.scopedKey('acct_1', 'POST', '/payments/:id', 'k')),
    'idempotency.outcome': 'claimed',
  })
  assert.equal(completion?.attributes['idempotency.outcome'], 'complete')
  assert.ok(claim.durationMs >= 0 && claim.durationMs < 1_000, `${claim.durationMs} ms`)
})

test('a replay is told from the first request by its outcome', async (t) => {
  t.after(traceIdempotency())
  const app = await createApp(t)
  app.post('/pay', async () => 'paid')
  await post(app, '/pay', 'k')
  exporter.reset()
  await traced(() => post(app, '/pay', 'k'))
  assert.deepEqual(
    spans().map(({ name, attributes }) => [name, attributes['idempotency.outcome']]),
    [
      ['idempotency.claim', 'replayed'],
      ['POST', undefined],
    ],
  )
})

test('a failed claim has an error status, and the request says why', async (t) => {
  t.after(traceIdempotency())
  const { store, broken } = breakableStore()
  const app = await createApp(t, { store, onStoreError: 'proceed' })
  app.post('/pay', async () => 'paid')
  broken.add('claim')
  await traced(() => post(app, '/pay', 'k'))
  const [claim, request] = spans()
  assert.equal(claim?.status, SpanStatusCode.ERROR)
  assert.deepEqual(
    request?.events.map(({ name, attributes }) => [
      name,
      attributes?.['error.type'],
      attributes?.['idempotency.operation'],
    ]),
    [
      ['idempotency.store_error', 'ECONNREFUSED', 'claim'],
      ['idempotency.unprotected', undefined, undefined],
    ],
  )
})

test('nothing is traced any more once it is stopped', async (t) => {
  const stop = traceIdempotency()
  const app = await createApp(t)
  app.post('/pay', async () => 'paid')
  stop()
  await post(app, '/pay', 'k')
  assert.deepEqual(spans(), [])
})
