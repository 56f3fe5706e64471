/** The public face of the package. */

import fastifyPlugin from 'fastify-plugin'
import { plugin } from './plugin.ts'

/** `await app.register(idempotency, options)`: see the README, and {@link IdempotencyOptions} for every option. */
const idempotency = fastifyPlugin(plugin, { fastify: '5.x', name: 'fastify-idempotency' })

export default idempotency

export type { EventType, IdempotencyMessage } from './channels.ts'
export {
  assertDuration,
  IdempotencyError,
  type IdempotencyErrorCode,
  ResponseTooLargeError,
  StoreFullError,
} from './errors.ts'
export type { ClaimOutcome, StoreOperation } from './events.ts'
export type { InstanceIdempotency } from './instance.ts'
export { keyDigest } from './logs.ts'
export type { IdempotencyOptions, MetricsRegistry, Outcome, RouteIdempotencyOptions } from './options.ts'
export type { RequestIdempotency } from './request/context.ts'
export { decodeResponse, encodeResponse, type StoredHeaders, type StoredResponse } from './response.ts'
export type {
  Claim,
  ClaimRequest,
  ClaimResult,
  IdempotencyRecord,
  IdempotencyStore,
  RecordState,
  StoreFigure,
  StoreFigures,
} from './store.ts'
export { MemoryStore, type MemoryStoreOptions } from './stores/memory.ts'
export { idempotency }
