/** Compression and ETags: a replay goes through them as the first answer did. */

import assert from 'node:assert/strict'
import { Readable } from 'node:stream'
import { brotliDecompressSync, gunzipSync, gzipSync } from 'node:zlib'
import compress, { type FastifyCompressOptions } from '@fastify/compress'
import etag from '@fastify/etag'
import type { FastifyInstance, RouteShorthandOptions } from 'fastify'
import { post } from './support/app.ts'
import { type BothPlugins, inBothOrders } from './support/orders.ts'

type Encoding = 'gzip' | 'br' | 'identity'
type Answer = Awaited<ReturnType<typeof post>>

const TEXT = JSON.stringify({ receipt: 'paid '.repeat(500) })

const decode: Record<Encoding, (bytes: Buffer) => Buffer> = {
  gzip: gunzipSync,
  br: brotliDecompressSync,
  identity: (bytes) => bytes,
}

function pay(app: FastifyInstance, key: string, encoding: Encoding) {
  return post(app, '/payments', key, { headers: { 'accept-encoding': encoding } })
}

function assertEncoded(answer: Answer, encoding: Encoding): void {
  assert.equal(answer.statusCode, 201)
  assert.equal(answer.headers['content-encoding'] ?? 'identity', encoding)
  assert.equal(decode[encoding](answer.rawPayload).toString(), TEXT)
}

const PAIRS: readonly (readonly [first: Encoding, retry: Encoding])[] = [
  ['gzip', 'identity'],
  ['identity', 'gzip'],
  ['br', 'gzip'],
  ['gzip', 'br'],
  ['identity', 'br'],
  ['br', 'br'],
]

async function assertReplayedInEveryEncoding({ app, runs, calls }: BothPlugins): Promise<void> {
  for (const [i, [first, retry]] of PAIRS.entries()) {
    assertEncoded(await pay(app, `k${i}`, first), first)
    const replay = await pay(app, `k${i}`, retry)
    assert.equal(replay.headers['idempotent-replayed'], 'true')
    assertEncoded(replay, retry)
    assert.equal(runs(), i + 1)
    assert.deepEqual(calls.slice(3 * i), ['claim', 'complete', 'claim'])
  }
}

interface Compression {
  readonly what: string
  readonly plugin: FastifyCompressOptions
  readonly route?: RouteShorthandOptions
}

const COMPRESSIONS: readonly Compression[] = [
  { what: '@fastify/compress on every route', plugin: { threshold: 0 } },
  { what: '@fastify/compress, in streams', plugin: { threshold: 0, syncThreshold: 0 } },
  {
    what: '@fastify/compress { global: false } and compress on the route',
    plugin: { global: false },
    route: { compress: { threshold: 0 } },
  },
]

const BODIES: Readonly<Record<string, () => unknown>> = {
  'a string': () => TEXT,
  'a Buffer': () => Buffer.from(TEXT),
  'a stream': () => Readable.from([Buffer.from(TEXT.slice(0, 100)), Buffer.from(TEXT.slice(100))]),
}

for (const { what, plugin, route } of COMPRESSIONS) {
  for (const [body, make] of Object.entries(BODIES)) {
    inBothOrders(
      `${what}: ${body} is replayed in the encoding that the retry accepts`,
      (app) => app.register(compress, plugin),
      async (both) => {
        both.app.post('/payments', route ?? {}, async (_request, reply) => {
          both.run()
          return reply.code(201).type('application/json').send(make())
        })
        await assertReplayedInEveryEncoding(both)
      },
    )
  }
}

/** Compressed by the handler, so what is recorded is already encoded. */
function compressingHandler({ app, run }: BothPlugins): void {
  app.post('/payments', async (_request, reply) => {
    run()
    reply.code(201).type('application/json').compress(TEXT)
    return reply
  })
}

for (const encoding of ['gzip', 'br', 'identity'] as const) {
  inBothOrders(
    `reply.compress(): an answer in ${encoding} is replayed to a retry that accepts ${encoding}`,
    (app) => app.register(compress, { global: false, threshold: 0 }),
    async (both) => {
      compressingHandler(both)
      assertEncoded(await pay(both.app, 'k', encoding), encoding)
      const replay = await pay(both.app, 'k', encoding)
      assert.equal(replay.headers['idempotent-replayed'], 'true')
      assert.equal(replay.headers.vary, encoding === 'identity' ? undefined : 'accept-encoding')
      assertEncoded(replay, encoding)
      assert.equal(both.runs(), 1)
    },
  )
}

inBothOrders(
  'reply.compress(): what the handler itself encoded is replayed as recorded, also to a retry that asks for identity',
  (app) => app.register(compress, { global: false, threshold: 0 }),
  async (both) => {
    compressingHandler(both)
    assertEncoded(await pay(both.app, 'k', 'gzip'), 'gzip')
    assertEncoded(await pay(both.app, 'k', 'identity'), 'gzip')
    assert.equal(both.runs(), 1)
  },
)

inBothOrders(
  'a compressed request body and the same body as it is are one request',
  (app) => app.register(compress),
  async ({ app, run, runs }) => {
    app.post('/payments', async (request) => ({ run: run(), echo: request.body }))
    const payload = gzipSync(JSON.stringify({ amount: 100 }))
    const headers = { 'content-type': 'application/json' }
    const zipped = await post(app, '/payments', 'k', { payload, headers: { ...headers, 'content-encoding': 'gzip' } })
    const plain = await post(app, '/payments', 'k')
    assert.equal(plain.headers['idempotent-replayed'], 'true')
    assert.equal(plain.body, zipped.body)
    assert.equal(runs(), 1)
  },
)

for (const [body, make] of Object.entries({ ...BODIES, 'an object': () => JSON.parse(TEXT) })) {
  if (body === 'a stream') continue // @fastify/etag makes none for streams
  inBothOrders(
    `@fastify/etag: the replay of ${body} has the same ETag`,
    (app) => app.register(etag),
    async ({ app, run, runs }) => {
      app.post('/payments', async (_request, reply) => {
        run()
        return reply.send(make())
      })
      const first = await post(app, '/payments', 'k')
      const replay = await post(app, '/payments', 'k')
      assert.match(String(first.headers.etag), /^"/)
      assert.equal(replay.headers['idempotent-replayed'], 'true')
      assert.equal(replay.headers.etag, first.headers.etag)
      assert.deepEqual(replay.rawPayload, first.rawPayload)
      assert.equal(runs(), 1)
    },
  )
}

inBothOrders(
  '@fastify/etag: a retry that already has the answer gets 304, the next one the answer',
  (app) => app.register(etag),
  async ({ app, run, runs }) => {
    app.post('/payments', async () => ({ run: run() }))
    const first = await post(app, '/payments', 'k')
    const headers = { 'if-none-match': String(first.headers.etag) }
    assert.equal((await post(app, '/payments', 'k', { headers })).statusCode, 304)
    const replay = await post(app, '/payments', 'k')
    assert.equal(replay.statusCode, 200)
    assert.equal(replay.body, first.body)
    assert.equal(runs(), 1)
  },
)

inBothOrders(
  "@fastify/etag: the handler's own ETag is the replay's",
  (app) => app.register(etag),
  async ({ app, run }) => {
    app.post('/payments', async (_request, reply) => reply.header('etag', `"v${run()}"`).send({ ok: true }))
    await post(app, '/payments', 'k')
    assert.equal((await post(app, '/payments', 'k')).headers.etag, '"v1"')
  },
)
