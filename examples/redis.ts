/**
 * The plugin on Redis behind Sentinel, as one would run it in production.
 *
 * `REDIS_SENTINELS=10.0.0.1:26379,10.0.0.2:26379,10.0.0.3:26379 REDIS_MASTER=main` and, where Redis asks for one,
 * `REDIS_PASSWORD`. What the servers must be set to: docs/stores/redis.md.
 */

import fastify from 'fastify'
import idempotency from 'fastify-idempotency'
import { RedisStore } from 'fastify-idempotency/redis'
import { Redis } from 'ioredis'

const { REDIS_SENTINELS = '127.0.0.1:26379', REDIS_MASTER = 'main', REDIS_PASSWORD, PORT = '3000' } = process.env
const accountOfApiKey = new Map([['key-of-acme', 'acct_acme']])

const app = fastify({ logger: true })

const redis = new Redis({
  sentinels: REDIS_SENTINELS.split(',').map((address) => {
    const [host = '', port = '26379'] = address.split(':')
    return { host, port: Number(port) }
  }),
  name: REDIS_MASTER,
  ...(REDIS_PASSWORD && { password: REDIS_PASSWORD }),
  failoverDetector: true, // leave the old master as soon as the Sentinels have a new one
  enableOfflineQueue: false, // a call without a connection fails at once, and is not made later
  maxRetriesPerRequest: 0, // a call whose connection broke is not made again behind its caller's back
  socketTimeout: 5_000, // a server that has fallen silent is left, with all that waits for it
  connectTimeout: 2_000,
  retryStrategy: (attempt) => Math.min(attempt * 50, 500),
})
redis.on('error', (error) => app.log.warn(error))
// A failover that is announced while ioredis asks a Sentinel for the master can end the client for good.
const revive = () => setTimeout(() => redis.connect().catch(() => {}), 100)
redis.on('end', revive)
// A client that is handed over is ours to close. Fastify runs these hooks backwards: after that of the plugin below.
app.addHook('onClose', () => {
  redis.off('end', revive)
  redis.disconnect()
})

await app.register(idempotency, {
  // A claim counts once a replica has it, so a failover does not forget it. `strict`: start only with safe settings.
  store: new RedisStore({ client: redis, keyPrefix: 'payments:', waitReplicas: 1, strict: true }),
  credential: (request) => accountOfApiKey.get(String(request.headers['x-api-key'])) ?? 'anonymous',
})
app.post('/payments', { config: { idempotency: { required: true } } }, async (request, reply) => {
  reply.code(201)
  return { id: 'pay_1', reference: request.idempotency?.derive('psp') }
})

await app.listen({ port: Number(PORT) })
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => app.close())
