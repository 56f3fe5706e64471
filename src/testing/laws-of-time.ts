/** Laws of leases and ttls: expired means absent, at once, by the clock of the store. */

import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Claim, ClaimRequest } from '../store.ts'
import {
  LONG_LEASE_MS,
  LONG_TTL_MS,
  newRequest,
  responseOf,
  rivalOf,
  SHORT_MS,
  type Trial,
  WINDOW_MS,
} from './trial.ts'

/** Registers the laws of time. */
export function timeLaws(trial: Trial): void {
  describe('time', { concurrency: trial.concurrency }, () => {
    expiry(trial)
    renewal(trial)
    longDurations(trial)
    refusedDurations(trial)
  })
}

function expiry(trial: Trial): void {
  it('a pending record past its ttl is absent', async () => {
    await expectGone(trial, await trial.claim(newRequest({ leaseMs: SHORT_MS / 2, ttlMs: SHORT_MS })))
  })

  it('a completed record past its ttl is absent', async () => {
    const claim = await trial.claim()
    await trial.client().complete(claim, responseOf('old'), SHORT_MS)
    await expectGone(trial, claim)
  })

  it('a failed record past its ttl is absent', async () => {
    const claim = await trial.claim()
    await trial.client().fail(claim, SHORT_MS)
    await expectGone(trial, claim)
  })

  it('a claim finds nothing of an expired record with another fingerprint', async () => {
    const request = newRequest()
    await trial.client().complete(await trial.claim(request), responseOf('old'), SHORT_MS)
    await trial.outlast(SHORT_MS)
    assert.equal((await trial.claim(newRequest({ scopedKey: request.scopedKey }), 1)).fence, 1)
  })

  for (const operation of ['complete', 'fail', 'renew', 'release'] as const) {
    it(`${operation} of an expired record is false and does not bring it back`, async () => {
      const claim = await trial.claim(newRequest({ leaseMs: SHORT_MS / 2, ttlMs: SHORT_MS }))
      await trial.outlast(SHORT_MS)
      const store = trial.client()
      const write = {
        complete: () => store.complete(claim, responseOf('late'), LONG_TTL_MS),
        fail: () => store.fail(claim, LONG_TTL_MS),
        renew: () => store.renew(claim, LONG_LEASE_MS),
        release: () => store.release(claim),
      }[operation]
      assert.equal(await write(), false)
      await trial.expectAbsent(claim.scopedKey)
    })
  }

  it('the ttl of a completed record counts from its completion, whatever the claim asked for', async () => {
    const claim = await trial.claim(newRequest({ leaseMs: SHORT_MS, ttlMs: WINDOW_MS }))
    await trial.client().complete(claim, responseOf('kept'), LONG_TTL_MS)
    await trial.outlast(WINDOW_MS)
    await trial.expectRecord(claim, 'completed', responseOf('kept'))
  })

  it('a lease is not a ttl: what is not taken over stays after its lease, and after its completion', async () => {
    const claim = await trial.claim(newRequest({ leaseMs: SHORT_MS }))
    await trial.client().complete(claim, responseOf('kept'), LONG_TTL_MS)
    await trial.outlast(SHORT_MS)
    await trial.expectRecord(claim, 'completed', responseOf('kept'))
  })
}

async function expectGone(trial: Trial, claim: Claim): Promise<void> {
  await trial.outlast(SHORT_MS)
  await trial.expectAbsent(claim.scopedKey)
}

function renewal(trial: Trial): void {
  it('before its lease has run out a pending record is not taken over', async () => {
    const request = newRequest({ leaseMs: WINDOW_MS })
    const claim = await trial.claim(request)
    await trial.pass(WINDOW_MS / 2)
    await expectProtected(trial, request, claim)
  })

  it('renew restarts the lease from now: it protects past the first one, and no longer than asked', async () => {
    const request = newRequest({ leaseMs: WINDOW_MS })
    const claim = await trial.claim(request)
    await trial.pass(WINDOW_MS / 2)
    assert.equal(await trial.client().renew(claim, WINDOW_MS), true)
    await trial.pass(WINDOW_MS / 2 + WINDOW_MS / 4)
    await expectProtected(trial, request, claim)
    await trial.outlast(WINDOW_MS)
    assert.equal((await trial.takeOver(rivalOf(request), 'expired')).fence, 2)
  })

  it('a renewed claim outlives the ttl that it was claimed with', async () => {
    const request = newRequest({ leaseMs: WINDOW_MS / 2, ttlMs: WINDOW_MS })
    const claim = await trial.claim(request)
    assert.equal(await trial.client().renew(claim, LONG_LEASE_MS), true)
    await trial.outlast(WINDOW_MS)
    await expectProtected(trial, request, claim)
  })
}

async function expectProtected(trial: Trial, request: ClaimRequest, claim: Claim): Promise<void> {
  assert.equal((await trial.client(1).claim(rivalOf(request))).outcome, 'exists')
  await trial.expectRecord(claim, 'pending')
}

const TWO_TO_31 = 2 ** 31
const LONG_DURATIONS: Readonly<Record<string, number>> = {
  '2^31 + 1000 ms': TWO_TO_31 + 1_000,
  '10 years': 10 * 365 * 86_400_000,
}

// A timer with more than 2^31 - 1 ms fires at once, in real time, whatever the clock of the store.
const letTimersFire = () => sleep(20)

function longDurations(trial: Trial): void {
  for (const [what, ms] of Object.entries(LONG_DURATIONS)) {
    it(`a claim with a lease and a ttl of ${what} is live`, async () => {
      const request = newRequest({ leaseMs: ms, ttlMs: ms })
      const claim = await trial.claim(request)
      await letTimersFire()
      await expectProtected(trial, request, claim)
    })

    it(`a lease renewed for ${what} is live`, async () => {
      const request = newRequest()
      const claim = await trial.claim(request)
      assert.equal(await trial.client().renew(claim, ms), true)
      await letTimersFire()
      await expectProtected(trial, request, claim)
    })

    it(`a completed record with a ttl of ${what} is live`, async () => {
      const claim = await trial.claim()
      assert.equal(await trial.client().complete(claim, responseOf('kept'), ms), true)
      await letTimersFire()
      await trial.expectRecord(claim, 'completed', responseOf('kept'))
    })

    it(`a failed record with a ttl of ${what} is live`, async () => {
      const claim = await trial.claim()
      assert.equal(await trial.client().fail(claim, ms), true)
      await letTimersFire()
      await trial.expectRecord(claim, 'failed')
    })
  }

  if (trial.capabilities.advance === undefined) return
  it('a ttl of 2^31 + 1000 ms is over after that, and not before', async () => {
    const claim = await trial.claim()
    await trial.client().complete(claim, responseOf('kept'), TWO_TO_31 + 1_000)
    await trial.pass(TWO_TO_31)
    await trial.expectRecord(claim, 'completed', responseOf('kept'))
    await trial.outlast(1_000)
    await trial.expectAbsent(claim.scopedKey)
  })
}

const IMPOSSIBLE: readonly number[] = [0, -1, 1.5, Number.NaN, Number.POSITIVE_INFINITY]

function refusedDurations(trial: Trial): void {
  for (const ms of IMPOSSIBLE) {
    it(`a duration of ${ms} ms is refused with an error and changes nothing`, async () => {
      const store = trial.client()
      const fresh = newRequest()
      await assert.rejects(store.claim({ ...fresh, leaseMs: ms }), Error, 'claim with leaseMs')
      await assert.rejects(store.claim({ ...fresh, ttlMs: ms }), Error, 'claim with ttlMs')
      await trial.expectAbsent(fresh.scopedKey)
      const claim = await trial.claim()
      await assert.rejects(store.complete(claim, responseOf('never'), ms), Error, 'complete with ttlMs')
      await assert.rejects(store.fail(claim, ms), Error, 'fail with ttlMs')
      await assert.rejects(store.renew(claim, ms), Error, 'renew with leaseMs')
      await trial.expectRecord(claim, 'pending')
    })
  }
}
