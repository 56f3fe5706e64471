/** What a strict TypeScript project sees. Compiled, never run. */

import { expectTypeOf } from 'expect-type'
import fastify from 'fastify'
import idempotency, {
  type Claim,
  type ClaimRequest,
  type ClaimResult,
  IdempotencyError,
  type IdempotencyErrorCode,
  type IdempotencyOptions,
  type IdempotencyRecord,
  type IdempotencyStore,
  MemoryStore,
  idempotency as named,
  type RequestIdempotency,
  type RouteIdempotencyOptions,
  type StoredResponse,
} from 'fastify-idempotency'
import { storeConformance } from 'fastify-idempotency/testing'

const app = fastify()

await app.register(idempotency)
await app.register(named, {
  store: new MemoryStore(),
  credential: (request) => request.ip,
  onInProgress: { waitMs: 5_000 },
  outcome: (_request, reply, error) => (error === undefined && reply.statusCode < 500 ? 'complete' : 'fail'),
  onReplay: async (request, record) => request.log.info({ state: record.state }),
})
// @ts-expect-error: no such option
await app.register(idempotency, { ttl: 60_000 })
// @ts-expect-error: not a duration in milliseconds
await app.register(idempotency, { ttlMs: '1 minute' })
// @ts-expect-error: no such answer
await app.register(idempotency, { onInProgress: 'wait' })
// @ts-expect-error: not a store
await app.register(idempotency, { store: new Map() })

app.post('/payments', { config: { idempotency: { required: true, ttlMs: 60_000 } } }, (request) => {
  expectTypeOf(request.idempotency).toEqualTypeOf<RequestIdempotency | null>()
  expectTypeOf(request.idempotency?.key).toEqualTypeOf<string | undefined>()
  expectTypeOf(request.idempotency?.fence).toEqualTypeOf<number | undefined>()
  expectTypeOf(request.idempotency?.signal).toEqualTypeOf<AbortSignal | undefined>()
  return { reference: request.idempotency?.derive('psp') }
})
app.post<{ Body: { amount: number } }>('/typed', { config: { idempotency: true } }, (request) => request.body.amount)
app.post('/uncovered', { config: { idempotency: false } }, () => 'ok')
// @ts-expect-error: not a duration in milliseconds
app.post('/mistake', { config: { idempotency: { ttlMs: '1 minute' } } }, () => 'ok')
// Fastify infers the type of `config` from what it is given, so only the check at start sees a misspelt name there.
const route: RouteIdempotencyOptions = {
  // @ts-expect-error: no such option
  require: true,
}
app.post('/checked', { config: { idempotency: route } }, () => 'ok')

expectTypeOf(app.idempotency.store).toEqualTypeOf<IdempotencyStore>()
expectTypeOf(app.idempotency.read('key')).resolves.toEqualTypeOf<IdempotencyRecord | undefined>()
expectTypeOf(app.idempotency.release('key')).resolves.toEqualTypeOf<boolean>()

expectTypeOf<IdempotencyOptions>().toExtend<RouteIdempotencyOptions>()
expectTypeOf<MemoryStore>().toExtend<IdempotencyStore>()
expectTypeOf<IdempotencyStore['claim']>().toEqualTypeOf<(request: ClaimRequest) => Promise<ClaimResult>>()
expectTypeOf<IdempotencyStore['complete']>().parameters.toEqualTypeOf<[Claim, StoredResponse, number]>()

app.setErrorHandler((error, _request, reply) => {
  if (error instanceof IdempotencyError) {
    expectTypeOf(error.code).toEqualTypeOf<IdempotencyErrorCode>()
    expectTypeOf(error.safeNewKey).toEqualTypeOf<boolean>()
  }
  return reply.send(error)
})

storeConformance(() => new MemoryStore(), { sharedState: false })
