/** Ten thousand at once. */

import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import { createApp, post } from './support/app.ts'
import { gate, until, watchedStore } from './support/stores.ts'

const STORM = 10_000

describe('a storm of 10,000 concurrent requests', () => {
  it('with one key: one execution, the rest 409', async (t) => {
    const { store, calls } = watchedStore()
    const app = await createApp(t, { store })
    const { open, opened } = gate()
    let runs = 0
    app.post('/pay', () => opened.then(() => ({ run: ++runs })))
    const requests = Array.from({ length: STORM }, () => post(app, '/pay', 'k'))
    await until('all have tried', () => calls.length === STORM)
    open()
    const statuses = new Map<number, number>()
    for (const { statusCode } of await Promise.all(requests))
      statuses.set(statusCode, (statuses.get(statusCode) ?? 0) + 1)
    assert.deepEqual(Object.fromEntries(statuses), { 200: 1, 409: STORM - 1 })
    assert.equal(runs, 1)
  })

  it('with one key and waitMs: one execution, 10,000 identical answers', async (t) => {
    const { store, calls } = watchedStore()
    const app = await createApp(t, { store, onInProgress: { waitMs: 60_000 } })
    const { open, opened } = gate()
    let runs = 0
    app.post('/pay', () => opened.then(() => ({ run: ++runs })))
    const requests = Array.from({ length: STORM }, () => post(app, '/pay', 'k'))
    await until('all have tried', () => calls.filter((call) => call === 'claim').length === STORM)
    open()
    const answers = new Set((await Promise.all(requests)).map(({ statusCode, body }) => `${statusCode} ${body}`))
    assert.deepEqual([...answers], ['200 {"run":1}'])
    assert.equal(runs, 1)
  })

  it('with 10,000 keys: 10,000 executions, each with its own answer, also on retry', async (t) => {
    const app = await createApp(t)
    let runs = 0
    app.post('/pay', async (request) => {
      runs++
      return request.idempotency?.key
    })
    for (const pass of ['first', 'retry']) {
      const answers = await Promise.all(Array.from({ length: STORM }, (_, i) => post(app, '/pay', `k${i}`)))
      answers.forEach(({ body, headers }, i) => {
        assert.equal(body, `k${i}`)
        assert.equal(headers['idempotent-replayed'], pass === 'retry' ? 'true' : undefined)
      })
      assert.equal(runs, STORM)
    }
  })
})
