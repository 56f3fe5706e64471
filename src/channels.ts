/** The same events on `node:diagnostics_channel`, for tracing and whatever else a process wants to know. */

import { channel } from 'node:diagnostics_channel'
import { type IdempotencyEvent, reasonOf } from './events.ts'
import { keyDigest, messageOf } from './logs.ts'

/** The part of an event that says whose key it was and whose request. */
interface Origin {
  /** First 16 hex digits of the SHA-256 of the scoped key, as in the logs. */
  readonly keyDigest: string
  /** Fastify's `request.id`. */
  readonly requestId: string
  readonly method: string
  /** Pattern of the route, not the URL: `/payments/:id/refunds`. */
  readonly route: string
}

/** In place of an error, which may carry the command it failed with and with it the key. */
interface Failure {
  /** As the `reason` label of `idempotency_store_errors_total`. */
  readonly reason: string
  readonly message: string
}

type Published<Event> = Event extends { readonly error: unknown }
  ? Omit<Event, 'error' | 'request' | 'scopedKey'> & Origin & Failure
  : Omit<Event, 'request' | 'scopedKey'> & Origin

/**
 * What a subscriber of `fastify-idempotency:<type>` gets. It has no key, token, credential, URL or body in it, so it
 * can be logged or exported as it is. Published in line with the request: a subscriber must be quick.
 */
export type IdempotencyMessage = Published<IdempotencyEvent>

/** The `<type>` in the names of the channels. */
export type EventType = IdempotencyEvent['type']

const CHANNELS = {
  claim: channel('fastify-idempotency:claim'),
  completion: channel('fastify-idempotency:completion'),
  'lease-lost': channel('fastify-idempotency:lease-lost'),
  'lease-expired': channel('fastify-idempotency:lease-expired'),
  'store-error': channel('fastify-idempotency:store-error'),
  'record-lost': channel('fastify-idempotency:record-lost'),
  unprotected: channel('fastify-idempotency:unprotected'),
} as const satisfies Record<EventType, unknown>

/** Publishes an event, if anybody listens. */
export function publishEvent(event: IdempotencyEvent): void {
  const { [event.type]: subscribers } = CHANNELS
  if (subscribers.hasSubscribers) subscribers.publish(messageFor(event))
}

function messageFor({ scopedKey, request, ...told }: IdempotencyEvent): IdempotencyMessage {
  const origin: Origin = {
    keyDigest: keyDigest(scopedKey),
    requestId: request.id,
    method: request.method,
    route: request.routeOptions.url ?? '',
  }
  if (!('error' in told)) return { ...told, ...origin }
  const { error, ...failed } = told
  return { ...failed, ...origin, reason: reasonOf(error), message: messageOf(error) }
}
