import { MemoryStore } from 'fastify-idempotency'
import { storeConformance } from 'fastify-idempotency/testing'

let now = 0

storeConformance(() => new MemoryStore({ now: () => now }), {
  sharedState: false,
  keepsReferences: true,
  advance(ms) {
    now += ms
  },
})
