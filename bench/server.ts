/** The measured side: the same route bare and with the plugin, in one process. Answers CPU readings over IPC. */

import fastify, { type FastifyInstance } from 'fastify'
import idempotency, { type IdempotencyOptions, MemoryStore } from 'fastify-idempotency'

async function start(options?: IdempotencyOptions): Promise<string> {
  const app: FastifyInstance = fastify()
  if (options !== undefined) await app.register(idempotency, options)
  app.post('/payments', async () => ({ id: 'pay_1', amount: 1000, currency: 'eur', status: 'captured' }))
  return app.listen({ host: '127.0.0.1', port: 0 })
}

// A short TTL keeps the run's records from piling up; it is longer than any phase, so every replay finds its record.
const measured = () => ({ store: new MemoryStore(), ttlMs: 30_000, credential: () => 'acct_1' })

const urls = {
  bare: await start(),
  plugin: await start({ ...measured(), metrics: false }),
  defaults: await start({ store: new MemoryStore(), ttlMs: 30_000 }),
  uncovered: await start({ ...measured(), metrics: false, global: false }),
}

process.on('message', () => {
  const { user, system } = process.cpuUsage()
  process.send?.({ cpuUs: user + system })
})
process.on('disconnect', () => process.exit())
process.send?.({ urls })
