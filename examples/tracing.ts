/**
 * OpenTelemetry spans of what the plugin does, made from its diagnostics channels.
 *
 * A claim and a completion become spans inside the request's span; what went wrong becomes an event on it. The plugin
 * itself knows nothing of OpenTelemetry: call this once, at start, where the SDK is set up.
 */

import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { type Attributes, SpanStatusCode, trace } from '@opentelemetry/api'
import { ATTR_ERROR_TYPE, ATTR_HTTP_REQUEST_METHOD, ATTR_HTTP_ROUTE } from '@opentelemetry/semantic-conventions'
import type { EventType, IdempotencyMessage } from 'fastify-idempotency'

const CHANNELS: readonly EventType[] = [
  'claim',
  'completion',
  'lease-expired',
  'lease-lost',
  'store-error',
  'record-lost',
  'unprotected',
]

/** Traces every app of this process. Returns how to stop. */
export function traceIdempotency(): () => void {
  const tracer = trace.getTracer('fastify-idempotency')

  function onMessage(message: unknown): void {
    const told = message as IdempotencyMessage
    if ('durationMs' in told) return addSpan(told)
    trace.getActiveSpan()?.addEvent(`idempotency.${told.type.replace('-', '_')}`, attributesOf(told))
  }

  // What is told of is over, so its span is given the time at which it began.
  function addSpan(told: IdempotencyMessage & { readonly durationMs: number }): void {
    const endTime = Date.now()
    const options = { startTime: endTime - told.durationMs, attributes: attributesOf(told) }
    const span = tracer.startSpan(`idempotency.${told.type}`, options)
    if (told.type === 'claim' && told.outcome === 'error') span.setStatus({ code: SpanStatusCode.ERROR })
    span.end(endTime)
  }

  for (const type of CHANNELS) subscribe(`fastify-idempotency:${type}`, onMessage)
  return () => {
    for (const type of CHANNELS) unsubscribe(`fastify-idempotency:${type}`, onMessage)
  }
}

function attributesOf(told: IdempotencyMessage): Attributes {
  return {
    [ATTR_HTTP_REQUEST_METHOD]: told.method,
    [ATTR_HTTP_ROUTE]: told.route,
    'idempotency.store': told.store,
    'idempotency.key_digest': told.keyDigest,
    ...('outcome' in told && { 'idempotency.outcome': told.outcome }),
    ...('operation' in told && { 'idempotency.operation': told.operation }),
    ...('reason' in told && { [ATTR_ERROR_TYPE]: told.reason }),
  }
}
