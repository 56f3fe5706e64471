/** A DynamoDB that drops replies or is silent, and conditions that fail: the winner knows it won, unknown is unknown. */

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, it } from 'node:test'
import { createApp, post } from './support/app.ts'
import { claimed, responseOf, TestBed } from './support/dynamodb/bed.ts'
import { ONE_ATTEMPT, proxied, type Settings } from './support/dynamodb/proxied.ts'
import type { DynamoDBProxy } from './support/dynamodb/proxy.ts'
import { startOwnDynamoDB } from './support/dynamodb/server.ts'
import { request } from './support/requests.ts'
import { until } from './support/stores.ts'

const bed = new TestBed(startOwnDynamoDB)

describe('the owner knows its own writes', () => {
  const faults: Readonly<Record<string, [Settings, (proxy: DynamoDBProxy) => void]>> = {
    "a reply that was lost, sent again by the SDK's own attempts": [
      { config: {} },
      (proxy) => proxy.resetAfterApply(1),
    ],
    "two replies lost, sent again by the SDK's own attempts": [{ config: {} }, (proxy) => proxy.resetAfterApply(2)],
    'a 500 although the write was made, sent again by the store': [
      {},
      (proxy) => proxy.answer(1, { status: 500, error: 'InternalServerError' }, true),
    ],
  }
  for (const [what, [settings, strike]] of Object.entries(faults)) {
    it(`${what}: claim, renewal, completion, failure, takeover and release`, async (t) => {
      const { proxy, store } = await proxied(bed, t, settings)
      const struck = async <Result>(operation: string, act: () => Promise<Result>): Promise<Result> => {
        const before = proxy.requests.length
        strike(proxy)
        const result = await act()
        assert.ok(proxy.requests.length - before >= 2, `${operation} was not sent again`)
        return result
      }
      // More would use up the attempts that the SDK allows a client in a row of failures.
      for (let round = 0; round < 2; round++) {
        const key = randomUUID()
        const claim = await struck('claim', () => claimed(store, request(key)))
        assert.equal(claim.fence, 1)
        assert.equal(await struck('renew', () => store.renew(claim, 30_000)), true)
        assert.equal(await struck('fail', () => store.fail(claim, 60_000)), true)
        const next = await struck('takeover', () => claimed(store, request(key)))
        assert.equal(next.fence, 2)
        assert.equal(await struck('release', () => store.release(next)), true)
        assert.equal(await store.release(next), false, 'another release finds nothing of it')
        const last = await claimed(store, request(key))
        assert.equal(last.fence, 1)
        assert.equal(await struck('complete', () => store.complete(last, responseOf('paid'), 60_000)), true)
        assert.equal((await store.read(key))?.response?.body, 'paid')
      }
    })
  }

  it('through the plugin: the reply to the claim and the one to the completion are lost, and the client has its 200', async (t) => {
    const { proxy, store } = await proxied(bed, t, { config: {} })
    const app = await createApp(t, { store })
    let runs = 0
    app.post('/pay', async () => {
      proxy.resetAfterApply(1)
      return { run: ++runs }
    })
    await app.ready()
    proxy.resetAfterApply(1)
    const key = randomUUID()
    assert.equal((await post(app, '/pay', key)).json().run, 1)
    assert.equal((await post(app, '/pay', key)).headers['idempotent-replayed'], 'true')
    assert.equal(proxy.lostReplies, 2)
    assert.equal(runs, 1)
  })
})

describe('a silent DynamoDB', () => {
  it("ends in an error within the store's own time, whatever the client's settings, and works again after it", async (t) => {
    for (const config of [{}, { maxAttempts: 10 }, ONE_ATTEMPT]) {
      const { proxy, store } = await proxied(bed, t, { config, options: { timeoutMs: 200 } })
      const claim = await claimed(store)
      proxy.blackhole()
      for (const act of [
        () => store.claim(request()),
        () => store.complete(claim, responseOf('paid'), 60_000),
        () => store.renew(claim, 30_000),
        () => store.release(claim),
        () => store.read(claim.scopedKey),
      ]) {
        const startedAt = performance.now()
        await assert.rejects(act, { code: 'FST_IDEMPOTENCY_STORE_TIMEOUT' })
        assert.ok(performance.now() - startedAt < 1_000, 'the time was not kept')
      }
      proxy.pass()
      assert.equal(await store.complete(claim, responseOf('paid'), 60_000), true)
    }
  })

  it('is 503 within storeTimeoutMs, and the key is free when it speaks again', async (t) => {
    const { proxy, store } = await proxied(bed, t, { config: {} })
    const app = await createApp(t, { store, storeTimeoutMs: 200 })
    let runs = 0
    app.post('/pay', async () => ({ run: ++runs }))
    await app.ready()
    const key = randomUUID()
    proxy.blackhole()
    const startedAt = performance.now()
    const responses = await Promise.all(Array.from({ length: 20 }, () => post(app, '/pay', key)))
    assert.ok(performance.now() - startedAt < 1_500, 'the time was not kept')
    assert.ok(responses.every(({ statusCode }) => statusCode === 503))
    assert.ok(proxy.requests.length > 0, 'nothing was sent')
    proxy.pass()
    await until('it answers again', async () => (await post(app, '/pay', key)).statusCode === 200)
    assert.equal(runs, 1)
  })

  it('that stalls (SIGSTOP) carries the claim out later, and it is released by its token', async (t) => {
    const { store } = await proxied(bed, t, { config: {} })
    const app = await createApp(t, { store, storeTimeoutMs: 200 })
    app.post('/pay', async () => 'paid')
    await app.ready()
    const key = randomUUID()
    bed.server.pause()
    const stalled = await post(app, '/pay', key)
    bed.server.resume()
    assert.equal(stalled.statusCode, 503)
    await until('the ghost claim is gone', async () => (await post(app, '/pay', key)).statusCode === 200)
  })
})

describe('a condition that fails', () => {
  it('is an answer: never sent again, by anyone', async (t) => {
    const { proxy, store } = await proxied(bed, t, { config: {} })
    const asked = request()
    const claim = await claimed(store, asked)
    const stale = { ...claim, token: randomUUID() }
    const acts: Readonly<Record<string, () => Promise<unknown>>> = {
      claim: async () => (await store.claim(request(asked.scopedKey))).outcome,
      complete: () => store.complete(stale, responseOf('paid'), 60_000),
      fail: () => store.fail(stale, 60_000),
      renew: () => store.renew(stale, 30_000),
      release: () => store.release(stale),
    }
    for (const [operation, act] of Object.entries(acts)) {
      proxy.requests.length = 0
      assert.equal(await act(), operation === 'claim' ? 'exists' : false)
      assert.deepEqual(proxy.requests, ['UpdateItem'], operation)
    }
  })

  it('on a server that does not say what it found is followed by one consistent read', async (t) => {
    const { proxy, store } = await proxied(bed, t)
    const asked = request()
    const claim = await claimed(store, asked)
    proxy.stripItems()
    proxy.requests.length = 0
    const other = await store.claim(request(asked.scopedKey))
    assert.ok(other.outcome === 'exists' && other.record.token === asked.token)
    assert.deepEqual(proxy.requests, ['UpdateItem', 'GetItem'])
    assert.deepEqual(await claimed(store, asked), claim, 'its own token')
    assert.equal(await store.renew(claim, 90_000), true)
    assert.equal(await store.renew({ ...claim, token: randomUUID() }, 90_000), false)
    assert.equal(await store.complete(claim, responseOf('paid'), 60_000), true)
    const replay = await store.claim(request(asked.scopedKey))
    assert.ok(replay.outcome === 'exists' && replay.record.response?.body === 'paid')
  })

  it('on a record that is gone when it is looked at is tried again', async (t) => {
    const { proxy, store } = await proxied(bed, t)
    proxy.answer(1, { status: 400, error: 'ConditionalCheckFailedException' })
    await claimed(store)
    assert.deepEqual(proxy.requests, ['UpdateItem', 'GetItem', 'UpdateItem'])
  })

  it('on an expired record would be counted, tried again, and end in an error', async (t) => {
    const { proxy, store, figures } = await proxied(bed, t)
    const asked = request()
    const item = { pk: { S: asked.scopedKey }, state: { S: 'completed' }, expires_at_ms: { N: '1' } }
    const blocked = { status: 400, error: 'ConditionalCheckFailedException', item }
    proxy.answer(1, blocked)
    await claimed(store, asked)
    assert.equal(figures['idempotency_expired_blocked_total'], 1)
    proxy.answer(3, blocked)
    await assert.rejects(store.claim(request()), /nothing live in its way, and failed, 3 times/)
    assert.equal(figures['idempotency_expired_blocked_total'], 4)
  })
})
