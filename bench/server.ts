/** The measured side of `npm run bench`: the same route bare and with the plugin, in one process. */

import { MemoryStore } from 'fastify-idempotency'
import { serve, start } from './serve.ts'

// A short TTL keeps the run's records from piling up; it is longer than any phase, so every replay finds its record.
const measured = () => ({ store: new MemoryStore(), ttlMs: 30_000, credential: () => 'acct_1' })

serve({
  bare: await start(),
  plugin: await start({ ...measured(), metrics: false }),
  defaults: await start({ store: new MemoryStore(), ttlMs: 30_000 }),
  uncovered: await start({ ...measured(), metrics: false, global: false }),
})
