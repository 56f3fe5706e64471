/** `fastify-idempotency/redis`. */

export type { RedisAddress, RedisClient, RedisConnection } from './client.ts'
export { QuorumRedisStore, type QuorumRedisStoreOptions } from './quorum.ts'
export { RedisStore, type RedisStoreOptions, type RedisStoreSettings } from './store.ts'
