/** What a user's first request looks like, on the Node and the Fastify that run this; any way of loading will do. */

import assert from 'node:assert/strict'

export async function smoke(fastify, idempotency, options = {}) {
  const app = fastify()
  await app.register(idempotency, options)
  let runs = 0
  app.post('/payments', { config: { idempotency: { required: true } } }, async (request, reply) => {
    runs++
    reply.code(201)
    return { key: request.idempotency.key, reference: request.idempotency.derive('psp') }
  })
  app.post('/bytes', async (_request, reply) => reply.type('application/octet-stream').send(Buffer.from([0, 255, 10])))
  app.post('/streams', async () => new Response('streamed', { status: 202 }))

  const url = await app.listen({ host: '127.0.0.1', port: 0 })
  const post = async (path, key, amount = 100) => {
    const headers = { 'content-type': 'application/json', ...(key && { 'idempotency-key': key }) }
    const response = await fetch(url + path, { method: 'POST', headers, body: JSON.stringify({ amount }) })
    const replayed = response.headers.get('idempotent-replayed')
    return { status: response.status, replayed, body: Buffer.from(await response.arrayBuffer()).toString('latin1') }
  }

  const first = await post('/payments', 'key-1')
  assert.equal(first.status, 201)
  assert.equal(first.replayed, null)
  assert.deepEqual(await post('/payments', 'key-1'), { ...first, replayed: 'true' })
  assert.equal((await post('/payments', 'key-1', 999)).status, 422)
  assert.equal((await post('/payments', undefined)).status, 400)
  assert.equal(runs, 1)
  for (const path of ['/bytes', '/streams']) {
    const { status, body } = await post(path, 'key-1')
    assert.deepEqual(await post(path, 'key-1'), { status, body, replayed: 'true' })
  }
  await app.close()
  console.log(`ok on Node ${process.version}, Fastify ${app.version}`)
}
