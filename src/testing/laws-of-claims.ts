/** Laws of `claim`: who gets a key, and what the others are told. */

import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import type { Claim, ClaimRequest } from '../store.ts'
import {
  assertRecord,
  assertResponse,
  claimIn,
  LONG_TTL_MS,
  newRequest,
  recordIn,
  responseOf,
  rivalOf,
  SHORT_MS,
  type Trial,
} from './trial.ts'

const PARALLEL = 64

/** Registers the laws of `claim` and `read`. */
export function claimLaws(trial: Trial): void {
  describe('claims', () => {
    freshKeys(trial)
    conflicts(trial)
    ownToken(trial)
  })
  describe('takeovers', { concurrency: trial.concurrency }, () => {
    takeovers(trial)
    otherFingerprints(trial)
  })
}

function freshKeys(trial: Trial): void {
  it('a store has a name for the `store` label', () => {
    assert.match(trial.client().name, /\S/)
  })

  it('of 64 claims sent at once exactly one is claimed, and the others get its record', async () => {
    const first = newRequest()
    const requests = Array.from({ length: PARALLEL }, () => rivalOf(first))
    const results = await Promise.all(requests.map((request, index) => trial.client(index).claim(request)))
    const winner = results.findIndex((result) => result.outcome === 'claimed')
    const [result, request] = [results[winner], requests[winner]]
    assert.ok(result !== undefined && request !== undefined, 'nobody was claimed')
    const claim = claimIn(result, request)
    assert.equal(claim.fence, 1)
    for (const other of results) if (other !== result) assertRecord(recordIn(other), claim, 'pending')
  })

  it('a free key is claimed with fence 1, and nothing was taken over', async () => {
    const request = newRequest()
    const result = await trial.client().claim(request)
    assert.equal(claimIn(result, request).fence, 1)
    assert.ok(result.outcome === 'claimed' && result.takenOver === 'no')
  })

  it('read gives undefined for a key that nobody claimed, and does not claim it', async () => {
    await trial.expectAbsent(newRequest().scopedKey)
  })

  it('a released key is free: the next claim gets fence 1', async () => {
    const claim = await trial.claim()
    await trial.release(claim)
    await trial.expectAbsent(claim.scopedKey)
  })
}

function conflicts(trial: Trial): void {
  it('a claim of a pending key gets the record in the same call', async () => {
    const request = newRequest()
    const claim = await trial.claim(request)
    assertRecord(recordIn(await trial.client(1).claim(rivalOf(request))), claim, 'pending')
    await trial.expectRecord(claim, 'pending')
  })

  it('a claim of a completed key gets the record and its response in the same call, as often as it is made', async () => {
    const request = newRequest()
    const claim = await trial.claim(request)
    const response = responseOf('paid')
    assert.equal(await trial.client().complete(claim, response, LONG_TTL_MS), true)
    for (let client = 0; client < 8; client++) {
      const record = recordIn(await trial.client(client).claim(rivalOf(request)))
      assertRecord(record, claim, 'completed')
      assertResponse(record.response, response)
    }
    await trial.expectRecord(claim, 'completed', response)
  })

  it('read gives a failed record, which is there until it is taken over', async () => {
    const claim = await trial.claim()
    await trial.client().fail(claim, LONG_TTL_MS)
    await trial.expectRecord(claim, 'failed')
  })

  it('the lease that is left, as others are told, is more than 0 and at most leaseMs', async () => {
    const request = newRequest({ leaseMs: 5_000 })
    const claim = await trial.claim(request)
    const told = recordIn(await trial.client(1).claim(rivalOf(request)))
    const read = await trial.client(2).read(claim.scopedKey)
    for (const record of [told, read]) {
      const left = record?.leaseRemainingMs ?? Number.NaN
      assert.ok(left > 0 && left <= 5_000 + trial.marginMs, `leaseRemainingMs is ${left}`)
    }
  })
}

function ownToken(trial: Trial): void {
  it('a claim sent again recognises its own token: claimed, same fence, the lease not restarted', async () => {
    const request = newRequest()
    const claim = await trial.claim(request)
    const before = await trial.client().read(request.scopedKey)
    await trial.pass(10)
    assert.deepEqual(await trial.claim(request), claim)
    const after = await trial.client().read(request.scopedKey)
    assertRecord(after, claim, 'pending')
    assert.ok((after?.leaseRemainingMs ?? 0) <= (before?.leaseRemainingMs ?? 0))
  })

  it('a takeover sent again recognises its own token: claimed, same fence', async () => {
    const request = newRequest()
    await trial.client().fail(await trial.claim(request), LONG_TTL_MS)
    const again = rivalOf(request)
    const claim = await trial.takeOver(again, 'failed')
    assert.deepEqual(await trial.claim(again), claim)
    assert.equal(claim.fence, 2)
  })

  // A ghost: the driver's second copy of a command that was answered long ago. Nobody hears its answer.
  it('a claim that arrives again after its own completion leaves the record as it stands', async () => {
    const request = newRequest()
    const claim = await trial.claim(request)
    await trial.client().complete(claim, responseOf('paid'), LONG_TTL_MS)
    await trial.client().claim(request)
    await trial.expectRecord(claim, 'completed', responseOf('paid'))
  })

  it('a claim that arrives again after its own failure leaves the record as it stands', async () => {
    const request = newRequest()
    const claim = await trial.claim(request)
    await trial.client().fail(claim, LONG_TTL_MS)
    await trial.client().claim(request)
    await trial.expectRecord(claim, 'failed')
  })
}

function takeovers(trial: Trial): void {
  it('a failed record is taken over at once, with fence + 1', async () => {
    const request = newRequest()
    await trial.client().fail(await trial.claim(request), LONG_TTL_MS)
    const claim = await trial.takeOver(rivalOf(request), 'failed')
    assert.equal(claim.fence, 2)
    await trial.expectRecord(claim, 'pending')
  })

  it('a pending record whose lease has run out is taken over, with fence + 1', async () => {
    const request = await lapsed(trial)
    const claim = await trial.takeOver(rivalOf(request), 'expired')
    assert.equal(claim.fence, 2)
    await trial.expectRecord(claim, 'pending')
  })

  it('of 64 claims sent at once after a lease has run out exactly one takes over', async () => {
    const request = await lapsed(trial)
    const rivals = Array.from({ length: PARALLEL }, () => rivalOf(request))
    const results = await Promise.all(rivals.map((rival, index) => trial.client(index).claim(rival)))
    const claimed = results.filter((result) => result.outcome === 'claimed')
    assert.equal(claimed.length, 1)
    assert.ok(claimed.every(({ claim }) => claim.fence === 2))
  })

  it('with takeOverExpired false a lease that has run out is left alone: exists, pending, 0 ms left', async () => {
    const request = await lapsed(trial)
    const record = recordIn(await trial.client(1).claim(rivalOf(request, { takeOverExpired: false })))
    assertRecord(record, { ...request, fence: 1 }, 'pending')
    assert.equal(record.leaseRemainingMs, 0)
  })

  it('with takeOverExpired false a failed record is taken over all the same', async () => {
    const request = newRequest()
    await trial.client().fail(await trial.claim(request), LONG_TTL_MS)
    const claim = await trial.takeOver(rivalOf(request, { takeOverExpired: false }), 'failed')
    assert.equal(claim.fence, 2)
  })

  it('after a takeover the old token is not claimed again', async () => {
    const request = await lapsed(trial)
    const claim = await trial.takeOver(rivalOf(request), 'expired')
    assertRecord(recordIn(await trial.client().claim(request)), claim, 'pending')
  })

  it('the fence grows by one with every takeover, whatever the reason', async () => {
    const request = newRequest({ leaseMs: SHORT_MS })
    await trial.claim(request)
    for (let fence = 2; fence <= 5; fence += 2) {
      await trial.outlast(SHORT_MS)
      const expired = await trial.takeOver(rivalOf(request), 'expired')
      assert.equal(expired.fence, fence)
      await trial.client().fail(expired, LONG_TTL_MS)
      const failed = await trial.takeOver(rivalOf(request, { leaseMs: SHORT_MS }), 'failed', fence)
      assert.equal(failed.fence, fence + 1)
    }
  })
}

/** A claim whose lease has run out and whose record is still there. */
async function lapsed(trial: Trial): Promise<ClaimRequest> {
  const request = newRequest({ leaseMs: SHORT_MS })
  await trial.claim(request)
  await trial.outlast(SHORT_MS)
  return request
}

function otherFingerprints(trial: Trial): void {
  const expectKept = async (request: ClaimRequest, claim: Claim, state: 'pending' | 'completed' | 'failed') => {
    const other = rivalOf(request, { fingerprint: `not ${request.fingerprint}` })
    assertRecord(recordIn(await trial.client(1).claim(other)), claim, state)
    await trial.expectRecord(claim, state)
  }

  it('another fingerprint does not take over a pending record', async () => {
    const request = newRequest()
    await expectKept(request, await trial.claim(request), 'pending')
  })

  it('another fingerprint does not take over a pending record whose lease has run out', async () => {
    const request = await lapsed(trial)
    await expectKept(request, { ...request, fence: 1 }, 'pending')
  })

  it('another fingerprint does not take over a completed record', async () => {
    const request = newRequest()
    const claim = await trial.claim(request)
    await trial.client().complete(claim, responseOf('paid'), LONG_TTL_MS)
    await expectKept(request, claim, 'completed')
  })

  it('another fingerprint does not take over a failed record', async () => {
    const request = newRequest()
    const claim = await trial.claim(request)
    await trial.client().fail(claim, LONG_TTL_MS)
    await expectKept(request, claim, 'failed')
  })
}
