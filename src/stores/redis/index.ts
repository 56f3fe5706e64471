/** `fastify-idempotency/redis`. */

export type { RedisAddress, RedisClient } from './client.ts'
export { RedisStore, type RedisStoreOptions, type RedisStoreSettings } from './store.ts'
