/**
 * Bytes of Redis memory per key, of records that the plugin itself has made.
 *
 * `MEMORY USAGE` leaves out the table of expiry times and the unused part of the hash tables; the growth of
 * `used_memory` over many keys has them.
 */

import { createHash, randomUUID } from 'node:crypto'
import fastify, { type FastifyInstance } from 'fastify'
import idempotency from 'fastify-idempotency'
import { RedisStore } from 'fastify-idempotency/redis'
import { Redis } from 'ioredis'
import { startRedis } from '../test/support/redis/servers.ts'
import { printTable } from './measure.ts'

/** Between two powers of two, so that Redis's hash tables are neither full nor just doubled. */
const KEYS = 6_000
const BODIES = [200, 2_000, 20_000]

export async function memory(): Promise<void> {
  const server = await startRedis({})
  const redis = new Redis(server.url)
  const plain = await createApp(server.url)
  const deflating = await createApp(server.url, 1_024)
  const rows = [['pending', '', ...(await pendingCells(redis, plain))]]
  for (const bytes of BODIES) {
    rows.push(['completed', bytes.toLocaleString('en'), ...(await cellsOf(redis, plain, bytes))])
    rows.push(['completed, deflated', bytes.toLocaleString('en'), ...(await cellsOf(redis, deflating, bytes))])
  }
  console.log(
    `redis-server ${(await redis.info('server')).match(/redis_version:(\S+)/)?.[1]}, ${KEYS} keys of each kind`,
  )
  printTable(['record', 'JSON body', 'length of key', 'length of value', 'MEMORY USAGE', 'used_memory per key'], rows)
  await Promise.all([plain.close(), deflating.close()])
  redis.disconnect()
  await server.stop()
}

/** Answers with a body of `?bytes=`; with `?holds` it never does. */
async function createApp(url: string, deflateFrom = Number.POSITIVE_INFINITY): Promise<FastifyInstance> {
  const app = fastify()
  const store = new RedisStore({ url, deflateFrom })
  await app.register(idempotency, { store, credential: () => 'acct_1042', metrics: false })
  app.post<{ Querystring: { bytes: string } }>('/payments', async (request, reply) => {
    const body = jsonOf(Number(request.query.bytes))
    reply.code(201).header('location', `/payments/${body.id}`)
    return body
  })
  app.post('/held', () => new Promise<never>(() => {}))
  await app.ready()
  return app
}

/** What an API answers: ids that are all different, and names and words that come again. */
function jsonOf(bytes: number) {
  const body = { id: `pay_${randomUUID()}`, status: 'captured', lines: [] as object[], note: '' }
  for (let i = 0; JSON.stringify(body).length < bytes - 150; i++) {
    const price = Math.floor(Math.random() * 100_000)
    body.lines.push({ sku: randomUUID(), quantity: 1 + (i % 5), unit_price: price, currency: 'EUR', tax_rate: '0.19' })
  }
  const missing = bytes - JSON.stringify(body).length
  body.note = createHash('sha512').update(body.id).digest('hex').repeat(2).slice(0, missing)
  return body
}

async function cellsOf(redis: Redis, app: FastifyInstance, bytes: number): Promise<string[]> {
  return measured(redis, async (key) => {
    const headers = { 'idempotency-key': key }
    const response = await app.inject({ method: 'POST', url: '/payments', query: { bytes: String(bytes) }, headers })
    if (response.statusCode !== 201 || response.body.length !== bytes) {
      throw new Error(`${response.statusCode}, ${response.body.length} bytes in place of ${bytes}`)
    }
  })
}

async function pendingCells(redis: Redis, app: FastifyInstance): Promise<string[]> {
  return measured(redis, async (key) => {
    app.inject({ method: 'POST', url: '/held', headers: { 'idempotency-key': key } }).catch(() => {})
  })
}

async function measured(redis: Redis, make: (key: string) => Promise<void>): Promise<string[]> {
  await redis.flushall('SYNC')
  const before = await usedMemory(redis)
  for (let i = 0; i < KEYS; i++) await make(randomUUID())
  while ((await redis.dbsize()) < KEYS) await new Promise((resolve) => setTimeout(resolve, 20))
  const perKey = ((await usedMemory(redis)) - before) / KEYS
  const key = (await redis.randomkey()) ?? ''
  const usage = Number(await redis.memory('USAGE', key, 'SAMPLES', 0))
  const lengths = [Buffer.byteLength(key), await redis.strlen(key)]
  return [...lengths, usage, perKey].map((count) => Math.round(count).toLocaleString('en'))
}

async function usedMemory(redis: Redis): Promise<number> {
  return Number((await redis.info('memory')).match(/used_memory:(\d+)/)?.[1])
}
