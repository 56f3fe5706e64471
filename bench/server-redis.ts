/**
 * The measured side of `npm run bench:redis`: the same route bare, with the least that a handler can do by hand to be
 * idempotent on Redis, with the least that is also safe, and with the plugin.
 */

import { hash, randomUUID } from 'node:crypto'
import type { FastifyInstance } from 'fastify'
import { RedisStore } from 'fastify-idempotency/redis'
import { Redis } from 'ioredis'
import stringify from 'safe-stable-stringify'
import { capture, serve, start } from './serve.ts'

const [, url = ''] = process.argv.slice(2)
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

const COMPLETE = `
local token = string.match(redis.call('GET', KEYS[1]) or '', '^p|([^|]*)|')
if token ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
`

interface WithComplete {
  completePayment(key: string, token: string, record: string, ttlMs: number): Promise<number>
}

/**
 * The least that is safe: keys are the caller's own, a reuse is told from a retry, a claim that the driver sends twice
 * is recognised, only the owner completes, and a replay has the first answer's status and type. No lease, no deadline,
 * no failed state, no events, one kind of body.
 */
function bySafeHand(app: FastifyInstance): void {
  const redis = new Redis(url, { enableAutoPipelining: true })
  redis.defineCommand('completePayment', { numberOfKeys: 1, lua: COMPLETE })
  const { completePayment } = redis as unknown as WithComplete
  app.post('/payments', async (request, reply) => {
    const key = `idem#acct_1#POST:/payments#${request.headers['idempotency-key']}`
    const fingerprint = hash('sha256', `${request.method} ${request.url}\n${stringify(request.body)}`, 'base64url')
    const token = randomUUID()
    const pending = `p|${token}|${fingerprint}|`
    const found = await redis.set(key, pending, 'PX', TTL_MS, 'NX', 'GET')
    if (found !== null && found !== pending) {
      const [state, , recorded, status, type, body] = found.split('|')
      if (recorded !== fingerprint) return reply.code(422).send()
      if (state === 'p') return reply.code(409).send()
      return reply.code(Number(status)).type(String(type)).send(body)
    }
    const body = JSON.stringify(capture())
    const type = 'application/json; charset=utf-8'
    await completePayment.call(redis, key, token, `c|${token}|${fingerprint}|200|${type}|${body}`, TTL_MS)
    return reply.type(type).send(body)
  })
}

// Until its start-up check is over (`listen` waits for it), the store claims by script, which costs more.
await serve({
  bare: () => start(),
  hand: () => start(undefined, byHand),
  safe: () => start(undefined, bySafeHand),
  plugin: () => start({ store: new RedisStore({ url }), ttlMs: TTL_MS, credential: () => 'acct_1', metrics: false }),
})
