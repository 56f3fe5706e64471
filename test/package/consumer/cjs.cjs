const assert = require('node:assert/strict')
const fastify = require('fastify')
const { default: idempotency, idempotency: named, MemoryStore } = require('fastify-idempotency')
const { smoke } = require('./smoke.mjs')

assert.equal(named, idempotency)
smoke(fastify, require('fastify-idempotency')).then(() => smoke(fastify, idempotency, { store: new MemoryStore() }))
