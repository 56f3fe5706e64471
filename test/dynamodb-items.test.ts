/** What an item looks like: names, units, what is left of a release, items of others; and the fence after expiry. */

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, it } from 'node:test'
import type { Claim } from '../src/store.ts'
import type { DynamoDBStore } from '../src/stores/dynamodb/index.ts'
import { claimed, responseOf, testBed } from './support/dynamodb/bed.ts'
import { request } from './support/requests.ts'

const bed = testBed()

const WRITES: Readonly<Record<string, (store: DynamoDBStore, claim: Claim) => Promise<boolean>>> = {
  complete: (store, claim) => store.complete(claim, responseOf('paid'), 60_000),
  fail: (store, claim) => store.fail(claim, 60_000),
  renew: (store, claim) => store.renew(claim, 30_000),
  'renew beyond its end': (store, claim) => store.renew(claim, 300_000),
  release: (store, claim) => store.release(claim),
}

describe('an item', () => {
  const scopedKey = () => `idem#v1#acme#POST:/pay#${randomUUID()}`
  const now = () => 1_700_000_000_123

  it('of a claim has the names and units that the documentation gives', async () => {
    const asked = request(scopedKey())
    await claimed(bed.store({ now, credentialIndex: true }), asked)
    assert.deepEqual(await bed.item(asked.scopedKey), {
      pk: { S: asked.scopedKey },
      state: { S: 'pending' },
      fingerprint: { S: 'f' },
      claim_token: { S: asked.token },
      fence: { N: '1' },
      previous_expires_at: { N: '0' },
      lease_expires_at: { N: '1700000030123' },
      expires_at: { N: '1700000061' },
      expires_at_ms: { N: '1700000060123' },
      created_at: { N: '1700000000123' },
      version: { N: '1' },
      credential_id: { S: 'acme' },
    })
  })

  it('of a completion keeps what is of use, and every write bumps version', async () => {
    const asked = request(scopedKey())
    const store = bed.store({ now })
    const claim = await claimed(store, asked)
    await store.renew(claim, 30_000)
    await store.complete(claim, responseOf('paid'), 5_000)
    const { response, ...rest } = (await bed.item(asked.scopedKey)) ?? {}
    assert.deepEqual(response, { S: '200 {}\npaid' })
    assert.deepEqual(rest, {
      pk: { S: asked.scopedKey },
      state: { S: 'completed' },
      fingerprint: { S: 'f' },
      claim_token: { S: asked.token },
      fence: { N: '1' },
      expires_at: { N: '1700000006' },
      expires_at_ms: { N: '1700000005123' },
      created_at: { N: '1700000000123' },
      version: { N: '3' },
    })
  })

  it('keeps text that is no Unicode as the bytes that were sent', async () => {
    const asked = request(scopedKey())
    const store = bed.store({ now })
    await store.complete(await claimed(store, asked), responseOf('half a pair: \ud83d'), 5_000)
    assert.ok((await bed.item(asked.scopedKey))?.['response']?.B)
    assert.equal((await store.read(asked.scopedKey))?.response?.body, 'half a pair: \ufffd')
  })

  it('that was released blocks nobody, whatever their clock says, and is left to TTL without the token', async () => {
    const asked = request(scopedKey())
    const store = bed.store({ credentialIndex: true })
    await store.release(await claimed(store, asked))
    const {
      claim_token: receipt,
      version,
      expires_at: expiresAt,
      created_at: _,
      ...rest
    } = (await bed.item(asked.scopedKey)) ?? {}
    assert.deepEqual(rest, { pk: { S: asked.scopedKey }, state: { S: 'released' }, expires_at_ms: { N: '0' } })
    assert.notEqual(receipt?.S, asked.token)
    assert.equal(version?.N, '2')
    assert.ok(Math.abs(Number(expiresAt?.N) - Date.now() / 1_000) < 5, 'TTL leaves alone what is five years old')
    const behind = bed.store({ now: () => Date.now() - 3_600_000 })
    assert.equal(await behind.read(asked.scopedKey), undefined)
    assert.equal((await claimed(behind, request(asked.scopedKey))).fence, 1)
  })

  for (const state of ['pending', 'completed', 'failed', 'anything']) {
    it(`seeded by hand, ${state}, with a passed expires_at and no more than that, is claimed`, async () => {
      const key = scopedKey()
      const passed = String(Math.floor(Date.now() / 1_000) - 1)
      await bed.put({
        pk: { S: key },
        state: { S: state },
        fingerprint: { S: 'other' },
        claim_token: { S: 'theirs' },
        fence: { N: '7' },
        lease_expires_at: { N: String(Date.now() + 60_000) },
        expires_at: { N: passed },
      })
      const store = bed.store()
      assert.equal(await store.read(key), undefined)
      const result = await store.claim(request(key))
      assert.ok(result.outcome === 'claimed' && result.takenOver === 'no')
      assert.equal(result.claim.fence, 1)
      assert.equal(await store.complete(result.claim, responseOf('paid'), 60_000), true)
      assert.equal((await store.read(key))?.fence, 1)
    })
  }

  it('seeded by hand, failed or with its lease over, is taken over with fence + 1', async () => {
    const seeds = [
      { state: { S: 'failed' }, lease_expires_at: { N: '0' } },
      { state: { S: 'pending' }, lease_expires_at: { N: String(Date.now() - 1_001) } },
    ]
    for (const seed of seeds) {
      const key = scopedKey()
      const ends = { expires_at: { N: String(Math.floor(Date.now() / 1_000) + 60) } }
      await bed.put({
        pk: { S: key },
        fingerprint: { S: 'f' },
        claim_token: { S: 't' },
        fence: { N: '7' },
        ...ends,
        ...seed,
      })
      assert.equal((await claimed(bed.store(), request(key))).fence, 8)
    }
  })

  it('seeded by hand without a fence is freed by what was read of it', async () => {
    const key = scopedKey()
    await bed.put({
      pk: { S: key },
      state: { S: 'failed' },
      fingerprint: { S: 'f' },
      claim_token: { S: 't' },
      expires_at: { N: String(Math.floor(Date.now() / 1_000) + 60) },
    })
    const store = bed.store()
    const record = (await store.read(key)) ?? assert.fail('no record')
    assert.equal(await store.release(record), true)
    assert.equal(await store.read(key), undefined)
  })

  it('of somebody else is refused, and not overwritten', async () => {
    const key = scopedKey()
    await bed.put({ pk: { S: key }, invoice: { S: '4711' } })
    await assert.rejects(bed.store().claim(request(key)), /unknown state/)
    assert.deepEqual(await bed.item(key), { pk: { S: key }, invoice: { S: '4711' } })
  })

  it('of a later version is neither taken over nor completed, only refused', async () => {
    const key = scopedKey()
    const expires = { expires_at: { N: String(Math.floor(Date.now() / 1_000) + 60) } }
    const item = { pk: { S: key }, format: { N: '2' }, state: { S: 'failed' }, fingerprint: { S: 'f' }, ...expires }
    await bed.put({ ...item, claim_token: { S: 'theirs' } })
    const store = bed.store()
    await assert.rejects(store.claim(request(key)), /unknown version "2" is in DynamoDB/)
    await assert.rejects(store.read(key), /unknown version "2" is in DynamoDB/)
    assert.deepEqual(await bed.item(key), { ...item, claim_token: { S: 'theirs' } })
  })

  it('after a takeover keeps nothing of the one before', async () => {
    const asked = request(scopedKey())
    const first = bed.store()
    await first.complete(await claimed(first, asked), responseOf(Buffer.alloc(5_000)), 1_000)
    await claimed(bed.store({ now: () => Date.now() + 2_000 }), request(asked.scopedKey))
    const item = await bed.item(asked.scopedKey)
    assert.equal(item?.['response'], undefined)
    assert.equal(item?.['response_encoding'], undefined)
  })
})

describe('the fence of a key whose expired record is still there', () => {
  // Claimed, failed and claimed again: fence 2. Then expired.
  async function expired(key: string) {
    const store = bed.store()
    await store.fail(await claimed(store, request(key)), 60_000)
    assert.equal((await claimed(store, request(key))).fence, 2)
    return bed.store({ now: () => Date.now() + 120_000 })
  }

  it('is 1, to its owner, to others, and to itself when the claim is sent again', async () => {
    const key = randomUUID()
    const later = await expired(key)
    const asked = request(key)
    assert.equal((await claimed(later, asked)).fence, 1)
    assert.equal((await later.read(key))?.fence, 1)
    assert.equal((await claimed(later, asked)).fence, 1)
  })

  for (const [operation, write] of Object.entries(WRITES)) {
    it(`does not keep its owner from ${operation}`, async () => {
      const key = randomUUID()
      const later = await expired(key)
      const claim = await claimed(later, request(key))
      assert.equal(await write(later, claim), true)
      assert.equal((await later.read(key))?.fence, operation === 'release' ? undefined : 1)
    })

    it(`keeps from ${operation} who was overtaken, though a copy of his claim has come late`, async () => {
      const key = randomUUID()
      const later = await expired(key)
      const asked = { ...request(key), leaseMs: 1 }
      const claim = await claimed(later, asked)
      const evenLater = bed.store({ now: () => Date.now() + 125_000 })
      assert.equal((await claimed(evenLater, { ...request(key), leaseMs: 1 })).fence, 4)
      const last = bed.store({ now: () => Date.now() + 130_000 })
      assert.equal((await claimed(last, asked)).fence, 5)
      assert.equal(await write(last, claim), false)
      assert.equal((await last.read(key))?.fence, 5)
    })
  }

  it('is no reason to keep a key whose claim was not answered', async () => {
    const key = randomUUID()
    const later = await expired(key)
    const claim = await claimed(later, request(key))
    assert.equal(await later.release({ ...claim, fence: 0 }), true)
    assert.equal(await later.read(key), undefined)
  })

  it('is 2 for a takeover after the owner has renewed', async () => {
    const key = randomUUID()
    const later = await expired(key)
    const claim = await claimed(later, request(key))
    assert.equal(await later.renew(claim, 1), true)
    const evenLater = bed.store({ now: () => Date.now() + 125_000 })
    assert.equal((await claimed(evenLater, request(key))).fence, 2)
  })

  it('grows for a takeover of an owner who has never written', async () => {
    const key = randomUUID()
    const later = await expired(key)
    await claimed(later, { ...request(key), leaseMs: 1 })
    const evenLater = bed.store({ now: () => Date.now() + 125_000 })
    const asked = request(key)
    assert.equal((await claimed(evenLater, asked)).fence, 4)
    assert.equal((await claimed(evenLater, asked)).fence, 4)
  })
})
