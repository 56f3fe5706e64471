/** Scoped keys as partition keys: whole, of any length, 10,000 of them. */

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, it } from 'node:test'
import { GetItemCommand } from '@aws-sdk/client-dynamodb'
import { claimed, responseOf, testBed } from './support/dynamodb/bed.ts'
import { newTable } from './support/dynamodb/server.ts'
import { request } from './support/requests.ts'

const bed = testBed()

describe('keys', () => {
  it('longer than a partition key of DynamoDB works all the same, each for itself', async () => {
    const store = bed.store()
    const long = `idem#v1#acme#POST:/pay#${'k'.repeat(3_000)}`
    const claim = await claimed(store, request(`${long}1`))
    await claimed(store, request(`${long}2`))
    await store.complete(claim, responseOf('paid'), 60_000)
    assert.equal((await store.read(`${long}1`))?.response?.body, 'paid')
    assert.equal((await store.read(`${long}1`))?.scopedKey, `${long}1`)
    assert.equal((await store.read(`${long}2`))?.state, 'pending')
  })

  it('of exactly 2,048 bytes is the partition key itself', async () => {
    const key = 'ż'.repeat(1_024)
    await claimed(bed.store(), request(key))
    assert.equal((await bed.item(key))?.['pk']?.S, key)
  })

  it('that are halves of surrogate pairs are different keys', async () => {
    const store = bed.store()
    const key = randomUUID()
    await claimed(store, request(`${key}\ud83d`))
    await claimed(store, request(`${key}\ud83e`))
    await claimed(store, request(`${key}\ufffd`))
  })

  it('10,000 of them, each its own partition key, are claimed by none twice', async () => {
    const table = await newTable(bed.client)
    const store = bed.store({ tableName: table, timeoutMs: 20_000 })
    const keys = Array.from({ length: 10_000 }, (_, index) => `idem#v1#acme#POST:/pay#${index}`)
    const left = keys.values()
    let won = 0
    const claimer = async () => {
      for (const key of left) if ((await store.claim(request(key))).outcome === 'claimed') won++
    }
    await Promise.all(Array.from({ length: 64 }, claimer))
    assert.equal(won, 10_000)
    const sample = keys[4_711] as string
    const found = await bed.client.send(new GetItemCommand({ TableName: table, Key: { pk: { S: sample } } }))
    assert.equal(found.Item?.['pk']?.S, sample, 'the whole scoped key is the partition key')
    for (const key of keys.slice(0, 100)) assert.equal((await store.claim(request(key))).outcome, 'exists')
  })
})
