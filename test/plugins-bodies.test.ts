/** Bodies that other plugins parse: uploads and forms. */

import assert from 'node:assert/strict'
import { getDefaultHighWaterMark, setDefaultHighWaterMark } from 'node:stream'
import formbody from '@fastify/formbody'
import multipart, { type FastifyMultipartOptions } from '@fastify/multipart'
import type { FastifyInstance } from 'fastify'
import { listen, post } from './support/app.ts'
import { type BothPlugins, inBothOrders } from './support/orders.ts'

interface Upload {
  readonly amount?: string
  readonly file?: string
  readonly filename?: string
  readonly boundary?: string
}

/** A form with a field and a file, as a client writes it. */
function form({ amount = '100', file = 'scan', filename = 'a.txt', boundary = 'first-boundary' }: Upload = {}) {
  const payload = [
    `--${boundary}`,
    'Content-Disposition: form-data; name="amount"',
    '',
    amount,
    `--${boundary}`,
    `Content-Disposition: form-data; name="receipt"; filename="${filename}"`,
    'Content-Type: text/plain',
    '',
    file,
    `--${boundary}--`,
    '',
  ].join('\r\n')
  return { payload, headers: { 'content-type': `multipart/form-data; boundary=${boundary}` } }
}

function upload(app: FastifyInstance, what: Upload = {}) {
  return post(app, '/uploads', 'k', form(what))
}

const RETRIES: readonly { readonly what: string; readonly retry: Upload }[] = [
  { what: 'byte for byte', retry: {} },
  { what: 'with another boundary, as every client makes a new one', retry: { boundary: 'b2' } },
]

const REUSES: readonly { readonly what: string; readonly other: Upload }[] = [
  { what: 'another field', other: { amount: '101' } },
  { what: 'another file of the same length', other: { file: 'SCAN' } },
  { what: 'a longer file', other: { file: 'scan of both sides' } },
]

function parsedRoute({ app, run }: BothPlugins): void {
  app.post('/uploads', async () => ({ run: run() }))
}

for (const attachFieldsToBody of [true, 'keyValues'] as const) {
  const mode = `@fastify/multipart { attachFieldsToBody: ${attachFieldsToBody} }`
  const install = (app: FastifyInstance) => app.register(multipart, { attachFieldsToBody })

  for (const { what, retry } of RETRIES) {
    inBothOrders(`${mode}: the same upload again, ${what}, is replayed`, install, async (both) => {
      parsedRoute(both)
      const first = await upload(both.app)
      const replay = await upload(both.app, retry)
      assert.deepEqual(first.json(), { run: 1 })
      assert.equal(replay.headers['idempotent-replayed'], 'true')
      assert.equal(replay.body, first.body)
      assert.equal(both.runs(), 1)
    })
  }

  for (const { what, other } of REUSES) {
    inBothOrders(`${mode}: ${what} under the same key is refused`, install, async (both) => {
      parsedRoute(both)
      await upload(both.app)
      const refused = await upload(both.app, other)
      assert.equal(refused.statusCode, 422)
      assert.equal(refused.json().code, 'FST_IDEMPOTENCY_KEY_REUSED')
      assert.equal(both.runs(), 1)
    })
  }

  inBothOrders(`${mode}: the handler still gets field and file after the fingerprint`, install, async ({ app }) => {
    app.post('/uploads', async (request) => {
      const { amount, receipt } = request.body as Record<
        string,
        Buffer & { value: string; toBuffer(): Promise<Buffer> }
      >
      if (attachFieldsToBody === 'keyValues') return { amount, receipt: String(receipt) }
      return { amount: amount?.value, receipt: String(await receipt?.toBuffer()) }
    })
    assert.deepEqual((await upload(app)).json(), { amount: '100', receipt: 'scan' })
    assert.deepEqual((await upload(app, { boundary: 'b2' })).json(), { amount: '100', receipt: 'scan' })
  })

  inBothOrders(`${mode}: an uploaded file is digested as bytes, not spelled out as JSON`, install, async (both) => {
    const spelledOut = both.t.mock.method(Buffer.prototype, 'toJSON')
    parsedRoute(both)
    assert.equal((await upload(both.app, { file: 'x'.repeat(1_000) })).statusCode, 200)
    assert.equal(spelledOut.mock.callCount(), 0)
  })

  inBothOrders(
    `${mode}: ignoreFields lets a field differ between retries`,
    install,
    async (both) => {
      parsedRoute(both)
      assert.deepEqual((await upload(both.app)).json(), { run: 1 })
      assert.deepEqual((await upload(both.app, { amount: '101' })).json(), { run: 1 })
      assert.equal((await upload(both.app, { file: 'other' })).statusCode, 422)
    },
    { idempotency: { ignoreFields: ['amount'] } },
  )

  inBothOrders(`${mode}: a retry after Node was upgraded is still the same upload`, install, async (both) => {
    parsedRoute(both)
    await upload(both.app)
    const before = getDefaultHighWaterMark(false)
    both.t.after(() => setDefaultHighWaterMark(false, before))
    setDefaultHighWaterMark(false, 4 * before) // what Node 22 did to the default of Node 20
    assert.equal((await upload(both.app)).headers['idempotent-replayed'], 'true')
    assert.equal(both.runs(), 1)
  })
}

const streaming = (app: FastifyInstance, options: FastifyMultipartOptions = {}) => app.register(multipart, options)

/** A handler that reads the upload itself. */
function streamingRoute({ app, run }: BothPlugins): void {
  app.post('/uploads', async (request) => {
    const receipt = await request.file()
    return { run: run(), receipt: String(await receipt?.toBuffer()) }
  })
}

for (const { what, retry } of RETRIES) {
  inBothOrders(`@fastify/multipart, streamed: the same upload again, ${what}, is replayed`, streaming, async (both) => {
    streamingRoute(both)
    assert.deepEqual((await upload(both.app)).json(), { run: 1, receipt: 'scan' })
    const replay = await upload(both.app, retry)
    assert.equal(replay.headers['idempotent-replayed'], 'true')
    assert.deepEqual(replay.json(), { run: 1, receipt: 'scan' })
    assert.equal(both.runs(), 1)
  })
}

inBothOrders(
  '@fastify/multipart, streamed: with a fingerprint of the route another upload under the same key is refused',
  streaming,
  async (both) => {
    streamingRoute(both)
    const send = (what: Upload, digest: string) => {
      const { payload, headers } = form(what)
      return post(both.app, '/uploads', 'k', { payload, headers: { ...headers, 'content-digest': digest } })
    }
    assert.deepEqual((await send({}, 'sha-256=:a:')).json(), { run: 1, receipt: 'scan' })
    assert.deepEqual((await send({ boundary: 'b2' }, 'sha-256=:a:')).json(), { run: 1, receipt: 'scan' })
    assert.equal((await send({ file: 'SCAN' }, 'sha-256=:b:')).statusCode, 422)
    assert.equal(both.runs(), 1)
  },
  { idempotency: { fingerprint: (request) => String(request.headers['content-digest']) } },
)

inBothOrders(
  '@fastify/multipart, streamed: a replay that reads none of a large upload leaves the connection usable',
  (app) => streaming(app, { limits: { fileSize: 10_000_000 } }),
  async (both) => {
    both.app.post('/uploads', async (request) => {
      const receipt = await request.file()
      return { run: both.run(), bytes: (await receipt?.toBuffer())?.length }
    })
    const url = await listen(both.app)
    const file = 'x'.repeat(4_000_000)
    for (const replayed of [null, 'true', 'true', 'true']) {
      const body = new FormData()
      body.set('receipt', new Blob([file]), 'a.txt')
      const response = await fetch(`${url}/uploads`, { method: 'POST', headers: { 'idempotency-key': 'k' }, body })
      assert.equal(response.headers.get('idempotent-replayed'), replayed)
      assert.deepEqual(await response.json(), { run: 1, bytes: file.length })
    }
  },
  { server: { bodyLimit: 10_000_000 } },
)

const encoded = { 'content-type': 'application/x-www-form-urlencoded' }

interface FormCase {
  readonly what: string
  readonly retry: string
  readonly status: 200 | 422
}

const FORMS: readonly FormCase[] = [
  { what: 'the same again', retry: 'amount=100&to=alice+b', status: 200 },
  { what: 'its members in another order', retry: 'to=alice+b&amount=100', status: 200 },
  { what: 'the same in another encoding', retry: 'to=alice%20b&amount=%31%30%30', status: 200 },
  { what: 'another value', retry: 'amount=101&to=alice+b', status: 422 },
  { what: 'one member more', retry: 'amount=100&to=alice+b&tip=1', status: 422 },
  { what: 'a repeated member', retry: 'amount=100&amount=100&to=alice+b', status: 422 },
]

for (const { what, retry, status } of FORMS) {
  inBothOrders(
    `@fastify/formbody: a form and ${what} ${status === 200 ? 'are one request' : 'are two, the second is refused'}`,
    (app) => app.register(formbody),
    async ({ app, run, runs }) => {
      app.post('/payments', async (request) => ({ run: run(), echo: request.body }))
      const first = await post(app, '/payments', 'k', { headers: encoded, payload: 'amount=100&to=alice+b' })
      assert.deepEqual(first.json(), { run: 1, echo: { amount: '100', to: 'alice b' } })
      const second = await post(app, '/payments', 'k', { headers: encoded, payload: retry })
      assert.equal(second.statusCode, status)
      if (status === 200) assert.equal(second.body, first.body)
      assert.equal(runs(), 1)
    },
  )
}
