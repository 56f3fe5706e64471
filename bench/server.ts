/** The measured side of `npm run bench`: the same route bare, made idempotent by hand, and with the plugin. */

import { hash, randomUUID } from 'node:crypto'
import type { FastifyInstance, FastifyRequest } from 'fastify'
import { MemoryStore } from 'fastify-idempotency'
import stringify from 'safe-stable-stringify'
import { capture, serve, start } from './serve.ts'

interface Entry {
  readonly fingerprint: string
  readonly token: string
  body: unknown
}

/**
 * The least that one would write by hand: fingerprint, claim, record, and one microtask for a store that answers later.
 * Keys are scoped to nobody and never expire, headers and status are lost, and nothing has a lease or a deadline.
 */
function byHand(app: FastifyInstance): void {
  const entries = new Map<string, Entry>()
  const claims = new WeakMap<FastifyRequest, Entry>()
  app.addHook('onSend', (request, _reply, payload, done) => {
    const entry = claims.get(request)
    if (entry !== undefined) entry.body = payload
    done(null, payload)
  })
  app.post('/payments', async (request, reply) => {
    const key = String(request.headers['idempotency-key'])
    const fingerprint = hash('sha256', `${request.method} ${request.url}\n${stringify(request.body)}`, 'base64url')
    await null
    const found = entries.get(key)
    if (found !== undefined) return reply.type('application/json').send(found.body)
    const entry = { fingerprint, token: randomUUID(), body: undefined }
    entries.set(key, entry)
    claims.set(request, entry)
    return capture()
  })
}

// A short TTL keeps the run's records from piling up; it is longer than any phase, so every replay finds its record.
const measured = () => ({ store: new MemoryStore(), ttlMs: 30_000, credential: () => 'acct_1' })

await serve({
  bare: () => start(),
  hand: () => start(undefined, byHand),
  plugin: () => start({ ...measured(), metrics: false }),
  defaults: () => start({ store: new MemoryStore(), ttlMs: 30_000 }),
  uncovered: () => start({ ...measured(), metrics: false, global: false }),
})
