import { MemoryStore } from 'fastify-idempotency'
import { storeConformance } from 'fastify-idempotency/testing'

storeConformance(() => new MemoryStore(), { sharedState: false })
