/** What calls cost and items weigh: write units, compression, and responses that are too large. */

import assert from 'node:assert/strict'
import { randomBytes, randomUUID } from 'node:crypto'
import { describe, it } from 'node:test'
import { inflateSync } from 'node:zlib'
import type { DynamoDBClient, UpdateItemCommandOutput } from '@aws-sdk/client-dynamodb'
import type { DynamoDBStoreOptions } from '../src/stores/dynamodb/index.ts'
import { createApp, post } from './support/app.ts'
import { claimed, responseOf, testBed } from './support/dynamodb/bed.ts'
import { request } from './support/requests.ts'

const bed = testBed()

/** A client that remembers what it sent and what came back. */
function watched() {
  const outputs: Partial<UpdateItemCommandOutput>[] = []
  const names: string[] = []
  const watching = {
    async send(command: { constructor: { name: string } }, options: object) {
      names.push(command.constructor.name)
      const output = await bed.client.send(command as never, options)
      outputs.push(output as UpdateItemCommandOutput)
      return output
    },
  }
  return { client: watching as unknown as DynamoDBClient, names, outputs }
}

describe('what it costs', () => {
  const units = ({ outputs }: ReturnType<typeof watched>) =>
    outputs.map(({ ConsumedCapacity: consumed }) => consumed?.CapacityUnits)

  it('a small claim is one write unit, a small completion another', async () => {
    const watch = watched()
    const store = bed.store({ client: watch.client })
    await store.complete(await claimed(store), responseOf('paid'), 60_000)
    assert.deepEqual(watch.names, ['UpdateItemCommand', 'UpdateItemCommand'])
    assert.deepEqual(units(watch), [1, 1])
  })

  for (const bytes of [1_500, 10_000, 100_000]) {
    it(`a completion with ${bytes} bytes that cannot be compressed is a write unit for each KiB of its item`, async () => {
      const watch = watched()
      const store = bed.store({ client: watch.client })
      const reported: number[] = []
      const sizes: number[] = []
      store.figures.listen?.((name, value, labels) => {
        if (name.endsWith('capacity_units_total') && labels?.['operation'] === 'complete') reported.push(value)
        if (name.endsWith('item_bytes')) sizes.push(value)
      })
      await store.complete(await claimed(store), responseOf(randomBytes(bytes)), 60_000)
      const [itemBytes = 0] = sizes
      assert.ok(itemBytes > bytes + 200 && itemBytes < bytes + 400, `its item has ${itemBytes} bytes`)
      assert.equal(units(watch)[1], Math.ceil(itemBytes / 1_024))
      assert.deepEqual(reported, [Math.ceil(itemBytes / 1_024)])
    })
  }

  it('a replay is one failed write and nothing else, counted by the item that it found', async () => {
    const watch = watched()
    const store = bed.store({ client: watch.client })
    const counted: Record<string, number> = {}
    const asked = request()
    await store.complete(await claimed(store, asked), responseOf(randomBytes(3_000)), 60_000)
    watch.names.length = 0
    store.figures.listen?.((name, value, labels) => {
      counted[`${name} ${labels?.['operation']}`] = value
    })
    assert.equal((await store.claim(request(asked.scopedKey))).outcome, 'exists')
    assert.deepEqual(watch.names, ['UpdateItemCommand'])
    assert.equal(counted['idempotency_dynamodb_conditional_check_failed_total claim'], 1)
    assert.equal(counted['idempotency_dynamodb_consumed_capacity_units_total claim'], 4)
  })

  it('a renewal is one write, and a second one only when the lease would outlive the record', async () => {
    const watch = watched()
    const store = bed.store({ client: watch.client })
    const claim = await claimed(store)
    assert.equal(await store.renew(claim, 30_000), true)
    assert.equal(watch.names.length, 2)
    assert.equal(await store.renew(claim, 90_000), true)
    assert.equal(watch.names.length, 4)
    assert.equal(await store.renew({ ...claim, token: randomUUID() }, 90_000), false)
    assert.equal(watch.names.length, 5)
  })
})

describe('responses', () => {
  const text = JSON.stringify(Array.from({ length: 200 }, (_, index) => ({ index, state: 'paid', amount: 100 })))

  it('are compressed where that saves a write unit, and come back as they were', async () => {
    const store = bed.store()
    const asked = request()
    await store.complete(await claimed(store, asked), responseOf(text), 60_000)
    const item = await bed.item(asked.scopedKey)
    assert.equal(item?.['response_encoding']?.S, 'deflate')
    const bytes = item?.['response']?.B ?? Buffer.alloc(0)
    assert.ok(bytes.length < text.length / 3, `${bytes.length} bytes of ${text.length}`)
    assert.ok(inflateSync(bytes).toString().endsWith(text))
    assert.equal((await store.read(asked.scopedKey))?.response?.body, text)
  })

  it('stay as they are where it saves none, or with compress: false', async () => {
    const bodies: [options: Partial<DynamoDBStoreOptions>, body: string | Buffer][] = [
      [{}, 'x'.repeat(500)],
      [{}, randomBytes(5_000)],
      [{ compress: false }, text],
    ]
    for (const [options, body] of bodies) {
      const store = bed.store(options)
      const asked = request()
      await store.complete(await claimed(store, asked), responseOf(body), 60_000)
      assert.equal((await bed.item(asked.scopedKey))?.['response_encoding'], undefined)
      assert.deepEqual((await store.read(asked.scopedKey))?.response?.body, body)
    }
  })

  it('beyond 400 KB are sent, recorded without their body, and a retry gets 409', async (t) => {
    const body = randomBytes(420_000)
    let runs = 0
    const app = await createApp(t, { store: bed.store() })
    app.post('/pay', async (_request, reply) => {
      runs++
      return reply.type('application/octet-stream').send(body)
    })
    const key = randomUUID()
    const first = await post(app, '/pay', key)
    assert.equal(first.statusCode, 200)
    assert.ok(first.rawPayload.equals(body))
    const retry = await post(app, '/pay', key)
    assert.equal(retry.statusCode, 409)
    assert.equal(retry.json().code, 'FST_IDEMPOTENCY_NOT_REPLAYABLE')
    assert.equal(runs, 1)
  })

  it('of 1 MB that compress well are replayed', async () => {
    const store = bed.store()
    const asked = request()
    const body = text.repeat(100)
    assert.equal(await store.complete(await claimed(store, asked), responseOf(body), 60_000), true)
    assert.equal((await store.read(asked.scopedKey))?.response?.body, body)
  })

  it('that just fit are kept, and one byte too many is refused before anything is sent', async () => {
    const watch = watched()
    const store = bed.store({ client: watch.client })
    const sizes: number[] = []
    store.figures.listen?.((name, value) => void (name.endsWith('item_bytes') && sizes.push(value)))
    const claim = await claimed(store)
    await store.complete(claim, responseOf(randomBytes(1_000)), 60_000)
    const most = 409_600 - ((sizes[0] ?? 0) - 1_000)
    const another = await claimed(store)
    // A little less: servers count the update itself, too, and what they then refuse is refused in the same way.
    assert.equal(await store.complete(another, responseOf(randomBytes(most - 1_024)), 60_000), true)
    const sent = watch.names.length
    const refusal = { code: 'FST_IDEMPOTENCY_RESPONSE_TOO_LARGE' }
    await assert.rejects(store.complete(claim, responseOf(randomBytes(most + 1)), 60_000), refusal)
    assert.equal(watch.names.length, sent)
  })

  it('that the server alone finds too large are refused with the same error', async () => {
    const store = bed.store()
    const asked = request()
    const claim = await claimed(store, asked)
    await bed.put({ ...(await bed.item(asked.scopedKey)), theirs: { B: randomBytes(200_000) } })
    const refusal = { code: 'FST_IDEMPOTENCY_RESPONSE_TOO_LARGE' }
    await assert.rejects(store.complete(claim, responseOf(randomBytes(300_000)), 60_000), refusal)
    assert.equal((await store.read(asked.scopedKey))?.state, 'pending')
  })

  it('from 300 KB on are warned of', async () => {
    const store = bed.store()
    const warnings: unknown[] = []
    store.onWarning((warning) => warnings.push(warning))
    const asked = request()
    await store.complete(await claimed(store, asked), responseOf(randomBytes(290_000)), 60_000)
    assert.deepEqual(warnings, [])
    const claim = await claimed(store, request())
    await store.complete(claim, responseOf(randomBytes(310_000)), 60_000)
    const [warning] = warnings as { message: string; fields: { item_bytes: number } }[]
    assert.equal(warnings.length, 1)
    assert.match(warning?.message ?? '', /item of 31\d{4} bytes/)
    assert.ok((warning?.fields.item_bytes ?? 0) > 310_000)
  })
})
