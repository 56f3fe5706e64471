/**
 * Laws of `complete`, `fail`, `renew` and `release`: only the bearer of the token in the record writes, and not he
 * if the record has a higher fence than his.
 */

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, it } from 'node:test'
import type { StoredResponse } from '../response.ts'
import type { Claim, IdempotencyStore, RecordState } from '../store.ts'
import { LONG_LEASE_MS, LONG_TTL_MS, newRequest, responseOf, rivalOf, SHORT_MS, type Trial } from './trial.ts'

/** Registers the laws of ownership. */
export function ownerLaws(trial: Trial): void {
  describe('stale tokens', { concurrency: trial.concurrency }, () => {
    staleTokens(trial)
  })
  describe('owners', { concurrency: trial.concurrency }, () => {
    sentTwice(trial)
    unknownFence(trial)
    finished(trial)
    late(trial)
  })
}

const WRITES: Readonly<Record<string, (store: IdempotencyStore, claim: Claim) => Promise<boolean>>> = {
  complete: (store, claim) => store.complete(claim, responseOf('stale'), LONG_TTL_MS),
  fail: (store, claim) => store.fail(claim, LONG_TTL_MS),
  renew: (store, claim) => store.renew(claim, 10 * LONG_LEASE_MS),
  release: (store, claim) => store.release(claim),
}

/** A claim that no longer owns, and what must still be there after it has tried to write; `undefined`: nothing. */
interface Stale {
  readonly claim: Claim
  readonly kept?: { readonly claim: Claim; readonly state: RecordState; readonly response?: StoredResponse }
}

const SITUATIONS: Readonly<Record<string, (trial: Trial) => Promise<Stale>>> = {
  'after a takeover': async (trial) => {
    const { old, owner } = await takenOver(trial)
    return { claim: old, kept: { claim: owner, state: 'pending' } }
  },
  'after a takeover that completed': async (trial) => {
    const { old, owner } = await takenOver(trial)
    await trial.client(1).complete(owner, responseOf('newer'), LONG_TTL_MS)
    return { claim: old, kept: { claim: owner, state: 'completed', response: responseOf('newer') } }
  },
  'after a takeover that failed': async (trial) => {
    const { old, owner } = await takenOver(trial)
    await trial.client(1).fail(owner, LONG_TTL_MS)
    return { claim: old, kept: { claim: owner, state: 'failed' } }
  },
  // The copy finds the lease of the one that took over run out, and takes the key once more, at a fence of which the
  // bearer of the token was never told.
  'after a takeover, when a copy of its claim has come late': async (trial) => {
    const request = newRequest({ leaseMs: SHORT_MS })
    const claim = await trial.claim(request)
    await trial.outlast(SHORT_MS)
    await trial.takeOver(rivalOf(request, { leaseMs: SHORT_MS }), 'expired')
    await trial.outlast(SHORT_MS)
    return { claim, kept: { claim: await trial.takeOver(request, 'expired'), state: 'pending' } }
  },
  'after its release': async (trial) => {
    const claim = await trial.claim()
    await trial.release(claim)
    return { claim }
  },
  'after its release and a claim by somebody else': async (trial) => {
    const request = newRequest()
    const claim = await trial.claim(request)
    await trial.release(claim)
    return { claim, kept: { claim: await trial.claim(rivalOf(request), 1), state: 'pending' } }
  },
  'that was never claimed with': async (trial) => {
    const owner = await trial.claim()
    return { claim: { ...owner, token: randomUUID() }, kept: { claim: owner, state: 'pending' } }
  },
}

async function takenOver(trial: Trial): Promise<{ old: Claim; owner: Claim }> {
  const request = newRequest({ leaseMs: SHORT_MS })
  const old = await trial.claim(request)
  await trial.outlast(SHORT_MS)
  return { old, owner: await trial.takeOver(rivalOf(request), 'expired') }
}

function staleTokens(trial: Trial): void {
  for (const [operation, write] of Object.entries(WRITES)) {
    for (const [situation, arrange] of Object.entries(SITUATIONS)) {
      it(`${operation} by a token ${situation} returns false and changes nothing`, async () => {
        const { claim, kept } = await arrange(trial)
        const before = await trial.client(1).read(claim.scopedKey)
        assert.equal(await write(trial.client(), claim), false)
        if (kept === undefined) return trial.expectAbsent(claim.scopedKey)
        await trial.expectRecord(kept.claim, kept.state, kept.response)
        const after = await trial.client(1).read(claim.scopedKey)
        assert.ok((after?.leaseRemainingMs ?? 0) <= (before?.leaseRemainingMs ?? 0), 'the lease was extended')
      })
    }
  }
}

function sentTwice(trial: Trial): void {
  it('complete sent twice by the same token is true both times, and one response is kept', async () => {
    const claim = await trial.claim()
    assert.equal(await trial.client().complete(claim, responseOf('paid'), LONG_TTL_MS), true)
    assert.equal(await trial.client(1).complete(claim, responseOf('paid'), LONG_TTL_MS), true)
    await trial.expectRecord(claim, 'completed', responseOf('paid'))
  })

  it('fail sent twice by the same token is true both times', async () => {
    const claim = await trial.claim()
    assert.equal(await trial.client().fail(claim, LONG_TTL_MS), true)
    assert.equal(await trial.client(1).fail(claim, LONG_TTL_MS), true)
    await trial.expectRecord(claim, 'failed')
  })

  it('renew sent twice by the same token is true both times', async () => {
    const claim = await trial.claim()
    assert.equal(await trial.client().renew(claim, LONG_LEASE_MS), true)
    assert.equal(await trial.client(1).renew(claim, LONG_LEASE_MS), true)
    await trial.expectRecord(claim, 'pending')
  })
}

// After a lost reply the plugin gives a claim back without ever having seen its fence.
function unknownFence(trial: Trial): void {
  it('a release with fence 0 frees a key that was claimed for the first time', async () => {
    const claim = await trial.claim()
    await trial.release({ ...claim, fence: 0 })
    await trial.expectAbsent(claim.scopedKey)
  })

  it('a release with fence 0 frees a key whose first claim has failed', async () => {
    const claim = await trial.claim()
    await trial.client().fail(claim, LONG_TTL_MS)
    await trial.release({ ...claim, fence: 0 })
    await trial.expectAbsent(claim.scopedKey)
  })

  it('a release with fence 0 does not forget a key that was taken over, whose fences would begin anew', async () => {
    const { owner } = await takenOver(trial)
    assert.equal(await trial.client().release({ ...owner, fence: 0 }), false)
    await trial.expectRecord(owner, 'pending')
  })
}

function finished(trial: Trial): void {
  for (const operation of ['fail', 'renew', 'release'] as const) {
    it(`${operation} of a completed record by its own token is false, and it stays completed`, async () => {
      const claim = await trial.claim()
      await trial.client().complete(claim, responseOf('paid'), LONG_TTL_MS)
      assert.equal(await WRITES[operation]?.(trial.client(), claim), false)
      await trial.expectRecord(claim, 'completed', responseOf('paid'))
    })
  }

  for (const operation of ['complete', 'renew'] as const) {
    it(`${operation} of a failed record by its own token is false, and it stays failed`, async () => {
      const request = newRequest()
      const claim = await trial.claim(request)
      await trial.client().fail(claim, LONG_TTL_MS)
      assert.equal(await WRITES[operation]?.(trial.client(), claim), false)
      await trial.expectRecord(claim, 'failed')
      assert.equal((await trial.takeOver(rivalOf(request), 'failed')).fence, 2)
    })
  }

  it('release of a failed record by its own token frees the key', async () => {
    const claim = await trial.claim()
    await trial.client().fail(claim, LONG_TTL_MS)
    await trial.release(claim)
    await trial.expectAbsent(claim.scopedKey)
  })
}

function late(trial: Trial): void {
  const lapsed = async () => {
    const claim = await trial.claim(newRequest({ leaseMs: SHORT_MS }))
    await trial.outlast(SHORT_MS)
    return claim
  }

  it('a late completion that nobody took over is accepted', async () => {
    const claim = await lapsed()
    assert.equal(await trial.client().complete(claim, responseOf('late'), LONG_TTL_MS), true)
    await trial.expectRecord(claim, 'completed', responseOf('late'))
  })

  it('a late fail that nobody took over is accepted', async () => {
    const claim = await lapsed()
    assert.equal(await trial.client().fail(claim, LONG_TTL_MS), true)
    await trial.expectRecord(claim, 'failed')
  })

  it('a late renewal that nobody took over is accepted, and protects again', async () => {
    const claim = await lapsed()
    assert.equal(await trial.client().renew(claim, LONG_LEASE_MS), true)
    assert.equal((await trial.client(1).claim(rivalOf({ ...newRequest(), ...claim }))).outcome, 'exists')
    await trial.expectRecord(claim, 'pending')
  })

  it('a late release that nobody took over frees the key', async () => {
    const claim = await lapsed()
    await trial.release(claim)
    await trial.expectAbsent(claim.scopedKey)
  })
}
