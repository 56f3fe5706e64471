/** Fences of a quorum of redis-servers: each is given out once, whatever members have lost, and whatever comes late. */

import assert from 'node:assert/strict'
import { describe, it, type TestContext } from 'node:test'
import { giveBackUnknown } from '../src/request/give-back.ts'
import type { Claim, ClaimRequest, IdempotencyStore } from '../src/store.ts'
import {
  assertReplayed,
  claimIn,
  cutOff,
  fulfilled,
  intercepted,
  MEMBER_TIMEOUT_MS,
  Members,
  newRequest,
  PAID,
  recordIn,
  rivalOf,
  SHORT_TIMEOUT_MS,
  straight,
  TTL_MS,
  timed,
} from './support/redis/quorum.ts'
import { gate, until } from './support/stores.ts'

type End = (store: IdempotencyStore, claim: Claim) => Promise<boolean>
const ENDS: Readonly<Record<string, End>> = {
  complete: (store, claim) => store.complete(claim, PAID, TTL_MS),
  fail: (store, claim) => store.fail(claim, TTL_MS),
  release: (store, claim) => store.release(claim),
  renew: (store, claim) => store.renew(claim, 1),
}

describe('fences of a quorum of redis-servers', () => {
  describe('that members have lost', () => fences(new Members(3)))
  describe('when calls come late', () => lateCalls(new Members(3)))
})

function fences(members: Members): void {
  /** A failed record with this fence, on these members. */
  const plant = async (t: TestContext, request: ClaimRequest, indexes: readonly number[], fence: number) => {
    for (const index of indexes) {
      const member = await members.member(t, index)
      const claim = claimIn(await member.claim(rivalOf(request)))
      await member.fail({ ...claim, fence }, TTL_MS)
    }
  }

  it('a claim has the fence of the majority, whatever a member that lost its data gives', async (t) => {
    const request = newRequest()
    await plant(t, request, [0, 1], 5)
    assert.equal(claimIn(await (await members.client(t)).claim(request)).fence, 6)
  })

  it('where only one of the members that are left knows the fence, the others are raised to it', async (t) => {
    const request = newRequest()
    await plant(t, request, [0, 1], 5)
    const store = await members.client(t)
    await members.at(1).kill()
    const claim = claimIn(await store.claim(request))
    assert.equal(claim.fence, 6)
    assert.equal((await (await members.member(t, 2)).read(request.scopedKey))?.fence, 6)
    assert.equal(await store.complete(claim, PAID, TTL_MS), true)
  })

  it('a member that was raised without telling is raised all the same', async (t) => {
    const request = newRequest()
    await plant(t, request, [0, 1], 5)
    let raises = 0
    const store = await members.client(t, (member, index) =>
      intercepted(member, async (operation, perform) => {
        const result = await perform()
        if (index === 2 && operation === 'renew' && ++raises === 1) throw new Error('the connection is gone')
        return result
      }),
    )
    await members.at(1).kill()
    assert.equal(claimIn(await store.claim(request)).fence, 6)
    assert.equal(raises, 1, 'it was not raised once')
    assert.equal((await (await members.member(t, 2)).read(request.scopedKey))?.fence, 6)
  })

  it('a claim that is about to fail keeps its fence to itself, though only one member knows of it', async (t) => {
    const request = newRequest()
    await plant(t, request, [0], 4)
    await plant(t, request, [1], 5)
    // Its failure has reached member 1 and not yet member 0; member 2 has lost its data.
    assert.equal(claimIn(await (await members.member(t, 0)).claim(rivalOf(request))).fence, 5)
    assert.equal(claimIn(await (await members.client(t, straight, SHORT_TIMEOUT_MS)).claim(request)).fence, 6)
  })

  it('rivals who come and go at one member hold nobody up, and one who knows of a fence raises the other', async (t) => {
    const request = newRequest()
    await plant(t, request, [2], 8)
    let passing: Claim | undefined
    const store = await members.client(t, (member, index) =>
      intercepted(member, async (operation, perform) => {
        if (index !== 0 || operation !== 'claim') return perform()
        if (passing !== undefined) await member.release(passing)
        passing = claimIn(await member.claim(rivalOf(request)))
        return perform()
      }),
    )
    const { ms, result } = await timed(store.claim(request))
    assert.equal(claimIn(fulfilled(result)).fence, 9)
    assert.equal((await (await members.member(t, 1)).read(request.scopedKey))?.fence, 9)
    assert.ok(ms < MEMBER_TIMEOUT_MS / 2, `${ms} ms`)
  })

  it('a minority that is given back keeps its fence', async (t) => {
    const request = newRequest()
    await plant(t, request, [0], 5)
    claimIn(await (await members.client(t, cutOff(0))).claim(request))
    recordIn(await (await members.client(t)).claim(rivalOf(request)))
    const member = await members.member(t, 0)
    const isGivenBack = async () => (await member.read(request.scopedKey))?.state === 'failed'
    await until('member 0 to be given back', isGivenBack)
    assert.equal((await member.read(request.scopedKey))?.fence, 5)
  })

  it('a minority that took the claim without telling keeps its fence', async (t) => {
    const request = newRequest()
    await plant(t, request, [0], 5)
    claimIn(await (await members.client(t, cutOff(0))).claim(request))
    const store = await members.client(t, (member, index) =>
      intercepted(member, async (operation, perform) => {
        const result = await perform()
        if (index === 0 && operation === 'claim') throw new Error('the connection is gone')
        return result
      }),
    )
    recordIn(await store.claim(rivalOf(request)))
    const member = await members.member(t, 0)
    const isGivenBack = async () => (await member.read(request.scopedKey))?.state !== 'pending'
    await until('member 0 to be given back', isGivenBack)
    assert.equal((await member.read(request.scopedKey))?.fence, 5)
  })

  it('a completion reaches also the member that gave a higher fence after the claim had been won', async (t) => {
    const request = newRequest()
    await plant(t, request, [2], 8)
    const won = gate()
    const store = await members.client(t, (member, index) =>
      intercepted(member, async (operation, perform) => {
        if (index === 2 && operation === 'claim') await won.opened
        return perform()
      }),
    )
    const claim = claimIn(await store.claim(request))
    assert.equal(claim.fence, 1)
    won.open()
    const last = await members.member(t, 2)
    await until('member 2 to have given 9', async () => (await last.read(request.scopedKey))?.token === claim.token)
    assert.equal(await store.complete(claim, PAID, TTL_MS), true)
    await until('member 2 to have it', async () => (await last.read(request.scopedKey))?.state === 'completed')
    assertReplayed(recordIn(await store.claim(rivalOf(request))))
  })
}

function lateCalls(members: Members): void {
  const LEASE_MS = 50

  /** Waits until nobody's lease runs on these members. */
  const untilLapsed = async (t: TestContext, { scopedKey }: ClaimRequest, indexes: readonly number[]) => {
    for (const index of indexes) {
      const member = await members.member(t, index)
      const isLapsed = async () => (await member.read(scopedKey))?.leaseRemainingMs === 0
      await until(`the lease to run out on member ${index}`, isLapsed)
    }
  }

  for (const [name, end] of Object.entries(ENDS)) {
    it(`two owners never get the same fence, although a copy of the first claim comes late: ${name}`, async (t) => {
      const first = newRequest({ leaseMs: LEASE_MS })
      const store = await members.client(t, cutOff(1))
      const owner = claimIn(await store.claim(first))
      await untilLapsed(t, first, [0, 2])
      const second = claimIn(await (await members.client(t, cutOff(0))).claim(rivalOf(first)))
      assert.deepEqual([owner.fence, second.fence], [1, 2])
      await untilLapsed(t, first, [1, 2])
      // It finds the second owner's lease over, too, and member 2 is the first one's again.
      assert.equal(claimIn(await (await members.member(t, 2)).claim(first)).fence, 3)
      assert.equal(await end(await members.client(t), owner), false, 'it had been taken over')
      await untilLapsed(t, first, [2])
      const third = claimIn(await (await members.client(t)).claim(rivalOf(first)))
      assert.ok(third.fence > second.fence, `${third.fence}, after ${second.fence}`)
    })
  }

  it('two owners never get the same fence, although a claim between them was given back without an answer', async (t) => {
    const request = newRequest({ leaseMs: LEASE_MS })
    const [owner, next] = [await members.client(t), await members.client(t)]
    assert.equal(claimIn(await owner.claim(request)).fence, 1)
    await untilLapsed(t, request, [0, 1, 2])
    const deaf = await members.client(
      t,
      (member) =>
        intercepted(member, async (operation, perform) => {
          const result = await perform()
          if (operation === 'claim' || operation === 'read') throw new Error('the connection is gone')
          return result
        }),
      SHORT_TIMEOUT_MS,
    )
    const unanswered = rivalOf({ ...request, leaseMs: 60_000 })
    await assert.rejects(deaf.claim(unanswered), /no majority/)
    assert.equal(await giveBackUnknown(deaf, { ...unanswered, fence: 0 }, TTL_MS), false)
    const member = await members.member(t, 0)
    assert.equal((await member.read(request.scopedKey))?.fence, 2)
    for (const index of [0, 1, 2]) {
      const held = await members.member(t, index)
      assert.equal(await held.giveBack({ ...unanswered, fence: 2 }, TTL_MS), true)
      assert.equal(await held.release({ ...unanswered, fence: 0 }), false)
    }
    assert.equal(claimIn(await next.claim(rivalOf(request))).fence, 2)
  })

  it('what is given back late takes nothing away from a claim by the same token that came later still', async (t) => {
    const request = newRequest({ leaseMs: LEASE_MS })
    const member = await members.member(t, 0)
    const claim = claimIn(await member.claim(request))
    assert.equal(await member.giveBack({ ...claim, fence: 2 }, TTL_MS), false)
    await untilLapsed(t, request, [0])
    const taken = claimIn(await member.claim(rivalOf(request)))
    await untilLapsed(t, request, [0])
    assert.equal(claimIn(await member.claim(request)).fence, 3)
    assert.equal(await member.giveBack(claim, TTL_MS), false)
    assert.equal(await member.giveBack(taken, TTL_MS), false)
    assert.equal((await member.read(request.scopedKey))?.fence, 3)
    assert.equal(await member.giveBack({ ...claim, fence: 3 }, TTL_MS), true)
    const { token, fence, state } = (await member.read(request.scopedKey)) ?? {}
    assert.deepEqual({ token, fence, state }, { token: '', fence: 2, state: 'failed' })
    assert.equal(claimIn(await member.claim(request)).fence, 3, 'who gave it back may claim it again')
  })
}
