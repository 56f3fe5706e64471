/**
 * The measured side of `npm run bench:redis`: the same route bare, with the least that a handler can do by hand to be
 * idempotent on Redis, and with the plugin.
 */

import type { FastifyInstance } from 'fastify'
import { RedisStore } from 'fastify-idempotency/redis'
import { Redis } from 'ioredis'
import { capture, serve, start } from './serve.ts'

const [url = ''] = process.argv.slice(2)
// Longer than any phase, so every replay finds its record.
const TTL_MS = 30_000

/**
 * The floor: claim, run, record; nothing else. It does not tell a retry from a reuse, scopes keys to nobody, keeps
 * neither status nor headers, has no lease, and a retry of its own claim by the driver reads as somebody else's.
 */
function byHand(app: FastifyInstance): void {
  const redis = new Redis(url, { enableAutoPipelining: true })
  app.post('/payments', async (request, reply) => {
    const key = `idem:${request.headers['idempotency-key']}`
    const found = await redis.set(key, 'pending', 'PX', TTL_MS, 'NX', 'GET')
    if (found === 'pending') return reply.code(409).send()
    reply.type('application/json')
    if (found !== null) return found
    const response = JSON.stringify(capture())
    await redis.set(key, response, 'PX', TTL_MS)
    return response
  })
}

// Until its start-up check is over (`listen` waits for it), the store claims by script, which costs more.
serve({
  bare: await start(),
  hand: await start(undefined, byHand),
  plugin: await start({
    store: new RedisStore({ url }),
    ttlMs: TTL_MS,
    credential: () => 'acct_1',
    metrics: false,
  }),
})
