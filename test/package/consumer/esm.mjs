import assert from 'node:assert/strict'
import fastify from 'fastify'
import idempotency, { MemoryStore, idempotency as named } from 'fastify-idempotency'
import { smoke } from './smoke.mjs'

assert.equal(named, idempotency)
await smoke(fastify, idempotency, { store: new MemoryStore() })
