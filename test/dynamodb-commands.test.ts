/** What calls share must end none of them early, mix none of them up, and hide nothing from the client's owner. */

import assert from 'node:assert/strict'
import { it } from 'node:test'
import * as sdk from '@aws-sdk/client-dynamodb'
import { Slots, UpdateItemCommand } from '../src/stores/dynamodb/commands.ts'
import { claimed, responseOf, testBed } from './support/dynamodb/bed.ts'
import { clientOf } from './support/dynamodb/client.ts'
import { startProxy } from './support/dynamodb/proxy.ts'
import { request } from './support/requests.ts'
import { until } from './support/stores.ts'

const bed = testBed()

it('calls that begin in the same tenth of the timeout share a signal, which is aborted at their deadline', (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] })
  const slots = new Slots(1_000)
  const first = slots.at(50)
  assert.equal(slots.at(149), first)
  assert.notEqual(slots.at(150), first)
  assert.equal(first.deadline, 1_050)
  t.mock.timers.tick(999)
  assert.equal(first.options.abortSignal.aborted, false)
  t.mock.timers.tick(1)
  assert.equal(first.options.abortSignal.aborted, true)
})

it('the longest timeout that there is ends no call at once', (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] })
  const { options } = new Slots(2 ** 31 - 1).at(0)
  t.mock.timers.tick(10)
  assert.equal(options.abortSignal.aborted, false)
})

it('after a pause of the process a call gets a new signal, not one that is about to be aborted', () => {
  const slots = new Slots(1_000)
  const before = slots.at(0)
  assert.notEqual(slots.at(5_000), before)
})

it('no attempt of the SDK reaches DynamoDB once a call was given up', async (t) => {
  const proxy = await startProxy(bed.server)
  const token = { getRetryCount: () => 1, getRetryDelay: () => 20 }
  const retryStrategy = {
    acquireInitialRetryToken: async () => token,
    refreshRetryTokenForRetry: async () => token,
    recordSuccess() {},
  }
  const client = clientOf(proxy.endpoint, { retryStrategy })
  t.after(async () => {
    client.destroy()
    await proxy.stop()
  })
  const store = bed.store({ client, timeoutMs: 300 })
  for (let round = 0; round < 3; round++) {
    const asked = request()
    proxy.answer(1_000, { status: 400, error: 'ProvisionedThroughputExceededException' })
    await assert.rejects(store.claim(asked))
    proxy.answer(0, { status: 400, error: 'ProvisionedThroughputExceededException' })
    await new Promise((resolve) => setTimeout(resolve, 200)) // for attempts that should not be made any more
    assert.equal(await bed.item(asked.scopedKey), undefined, `round ${round}: a claim that nobody knows of`)
  }
})

it('hundreds of calls on one signal make no warning', async (t) => {
  const warnings: Error[] = []
  const note = (warning: Error) => warning.name === 'MaxListenersExceededWarning' && warnings.push(warning)
  process.on('warning', note)
  t.after(() => process.off('warning', note))
  const signal = new Slots(1_000).at(0).options.abortSignal
  for (let i = 0; i < 300; i++) signal.addEventListener('abort', () => {})
  await new Promise((resolve) => setImmediate(resolve))
  assert.deepEqual(warnings, [])
})

it('a middleware that is added to the client sees every call, and one that is added later soon does', async (t) => {
  const client = clientOf(bed.server.endpoint)
  t.after(() => client.destroy())
  const seen: string[] = []
  const note = (name: string) => {
    const middleware = (next: (args: unknown) => unknown) => (args: unknown) => {
      seen.push(name)
      return next(args)
    }
    client.middlewareStack.add(middleware as never, { step: 'initialize', name })
  }
  note('first')
  const store = bed.store({ client, timeoutMs: 500 })
  for (let i = 0; i < 5; i++) await claimed(store)
  assert.deepEqual(seen, Array(5).fill('first'))
  note('later')
  await until('the later one is seen', async () => {
    await claimed(store)
    return seen.includes('later')
  })
})

it('whoever wraps send of the client gets an UpdateItemCommand with the input of the call', async (t) => {
  const client = clientOf(bed.server.endpoint)
  t.after(() => client.destroy())
  const sent: unknown[] = []
  const send = client.send.bind(client) as (...given: unknown[]) => Promise<never>
  client.send = (command: unknown, ...rest: unknown[]) => {
    sent.push(command)
    return send(command, ...rest)
  }
  const asked = request()
  await claimed(bed.store({ client }), asked)
  assert.ok(sent[0] instanceof sdk.UpdateItemCommand)
  assert.equal(sent[0].constructor.name, 'UpdateItemCommand')
  assert.deepEqual(sent[0].input.Key, { pk: { S: asked.scopedKey } })
})

it('two clients in one process keep their calls apart', async (t) => {
  const nowhere = clientOf('http://127.0.0.1:1')
  t.after(() => nowhere.destroy())
  const { options } = new Slots(1_000).at(0)
  const command = () => new UpdateItemCommand({ TableName: bed.tableName, Key: { pk: { S: 'apart' } } })
  await bed.client.send(command(), options)
  await assert.rejects(nowhere.send(command(), options))
  await bed.client.send(command(), options)
})

it('parallel calls with one middleware each get their own answer', async () => {
  const store = bed.store()
  const keys = await Promise.all(
    Array.from({ length: 50 }, async (_, index) => {
      const asked = request()
      await store.complete(await claimed(store, asked), responseOf(`answer ${index}`), 60_000)
      return asked.scopedKey
    }),
  )
  const records = await Promise.all(keys.map((scopedKey) => store.claim(request(scopedKey))))
  const bodies = records.map((result) => result.outcome === 'exists' && result.record.response?.body)
  assert.deepEqual(
    bodies,
    keys.map((_, index) => `answer ${index}`),
  )
})
