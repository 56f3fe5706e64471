/** What a quorum of redis-servers makes of members that forgot, or never heard, and of fences that differ. */

import assert from 'node:assert/strict'
import { describe, it, type TestContext } from 'node:test'
import type { Claim, ClaimRequest, ClaimResult } from '../src/store.ts'
import {
  assertReplayed,
  claimIn,
  cutOff,
  fulfilled,
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
import { gate, intercepted, until } from './support/stores.ts'

describe('records of a quorum of redis-servers', () => {
  describe('that members have lost', () => forgottenRecords(new Members(3)))
  describe('with different fences', () => fences(new Members(3)))
})

function forgottenRecords(members: Members): void {
  for (const index of [0, 1, 2]) {
    it(`a completed key is not run again when member ${index} has lost its data`, async (t) => {
      const store = await members.client(t)
      const request = newRequest()
      await store.complete(claimIn(await store.claim(request)), PAID, TTL_MS)
      await members.untilHaving(request, [0, 1, 2])
      await members.at(index).cli('flushall')
      for (let retry = 0; retry < 10; retry++) assertReplayed(recordIn(await store.claim(rivalOf(request))))
      assertReplayed(await store.read(request.scopedKey))
      await members.untilHaving(
        request,
        [0, 1, 2].filter((other) => other !== index),
      )
    })
  }

  it('a completion that is on its way is replayed as soon as one member has it', async (t) => {
    const store = await members.client(t)
    const request = newRequest()
    const claim = claimIn(await store.claim(request))
    await (await members.member(t, 1)).complete(claim, PAID, TTL_MS)
    await members.at(0).pause()
    assertReplayed(recordIn(await store.claim(rivalOf(request))))
    assertReplayed(await store.read(request.scopedKey))
  })

  it('a pending key is not claimed again when a member has lost its data', async (t) => {
    const store = await members.client(t)
    const request = newRequest()
    const claim = claimIn(await store.claim(request))
    await members.untilHaving(request, [0, 1, 2])
    await members.at(0).cli('flushall')
    assert.equal(recordIn(await store.claim(rivalOf(request))).state, 'pending')
    assert.equal(await store.complete(claim, PAID, TTL_MS), true)
  })

  it('a completion reaches also the member that missed the claim, so that another one may lose its data', async (t) => {
    const request = newRequest()
    let isClaimed = false
    const store = await members.client(t, (member, index) =>
      intercepted(member, async (operation, perform) => {
        if (index === 2 && operation === 'claim' && !isClaimed) throw new Error('not now')
        return perform()
      }),
    )
    const claim = claimIn(await store.claim(request))
    assert.deepEqual(await members.having(request), [0, 1])
    isClaimed = true
    assert.equal(await store.complete(claim, PAID, TTL_MS), true)
    await members.untilHaving(request, [0, 1, 2])
    await members.at(0).cli('flushall')
    await members.at(1).kill()
    assertReplayed(recordIn(await store.claim(rivalOf(request))))
  })

  it('a completion is brought also to the member that a rival has for the moment', async (t) => {
    const request = newRequest()
    const rival = await members.member(t, 2)
    const passing = claimIn(await rival.claim(rivalOf(request)))
    const said: string[] = []
    const store = await members.client(t, (member, index) =>
      intercepted(member, async (operation, perform) => {
        const result = await perform()
        if (index === 2) said.push(`${operation} ${(result as ClaimResult).outcome ?? result}`)
        return result
      }),
    )
    const claim = claimIn(await store.claim(request))
    await until('the rival to be known', () => said.includes('claim exists'))
    assert.equal(await store.complete(claim, PAID, TTL_MS), true)
    await until('the rival to be in the way', () => said.join().includes('complete false,claim exists'))
    await rival.release(passing)
    const isCompleted = async () => (await rival.read(request.scopedKey))?.state === 'completed'
    await until('member 2 to have the completion', isCompleted)
  })

  it('a completed record on one member of the majority that answers is enough to refuse, and to replay', async (t) => {
    const request = newRequest()
    const owner = await members.client(t, cutOff(2))
    await owner.complete(claimIn(await owner.claim(request)), PAID, TTL_MS)
    await owner.close()
    const store = await members.client(t)
    await members.at(1).pause()
    const startedAt = performance.now()
    assertReplayed(recordIn(await store.claim(rivalOf(request))))
    assertReplayed(await store.read(request.scopedKey))
    assert.ok(performance.now() - startedAt < MEMBER_TIMEOUT_MS, 'the silent member was waited for')
    members.at(1).resume()
    await members.untilHaving(request, [0, 1])
  })

  it('a completed record that is known before a majority has given the claim refuses it', async (t) => {
    const request = newRequest()
    const member = await members.member(t, 0)
    await member.complete(claimIn(await member.claim(rivalOf(request))), PAID, TTL_MS)
    const told = gate()
    const store = await members.client(t, (inner, index) =>
      intercepted(inner, async (operation, perform) => {
        if (operation === 'claim' && index === 2) await told.opened
        const result = await perform()
        if (operation === 'claim' && index === 0) told.open()
        return result
      }),
    )
    assertReplayed(recordIn(await store.claim(request)))
    await members.untilHaving(request, [0])
  })

  it('a stale completion on a minority does not stop the claim that overtook it', async (t) => {
    const request = newRequest()
    const stale = claimIn(await (await members.member(t, 0)).claim(request))
    for (const index of [1, 2]) {
      const member = await members.member(t, index)
      await member.fail(claimIn(await member.claim(request)), TTL_MS)
    }
    await (await members.member(t, 0)).complete(stale, PAID, TTL_MS)
    const store = await members.client(t)
    const claim = claimIn(await store.claim(rivalOf(request)))
    assert.equal(claim.fence, 2)
    assert.equal((await store.read(request.scopedKey))?.token, claim.token)
    assert.equal(await store.complete(stale, { ...PAID, body: 'stale' }, TTL_MS), false)
    assert.equal(await store.complete(claim, PAID, TTL_MS), true)
    assertReplayed(recordIn(await store.claim(rivalOf(request))))
  })

  it('another request with a key whose split record nobody holds is told so, instead of waiting', async (t) => {
    const request = newRequest()
    for (const index of [0, 1, 2]) {
      const member = await members.member(t, index)
      await member.fail(claimIn(await member.claim(rivalOf(request))), TTL_MS)
    }
    const store = await members.client(t)
    const { ms, result } = await timed(store.claim({ ...rivalOf(request), fingerprint: 'another' }))
    assert.equal(recordIn(fulfilled(result)).fingerprint, 'f')
    assert.ok(ms < MEMBER_TIMEOUT_MS / 2, `${ms} ms`)
  })
}

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

  it('rivals who come and go while a member is raised do not lower its fence', async (t) => {
    const request = newRequest()
    await plant(t, request, [0, 1], 5)
    let claims = 0
    const store = await members.client(t, (member, index) =>
      intercepted(member, async (operation, perform) => {
        // The second claim at member 2 is that of the stepping stone: somebody runs and fails ahead of it.
        if (index === 2 && operation === 'claim' && ++claims === 2) {
          await member.fail(claimIn(await member.claim(rivalOf(request))), TTL_MS)
        }
        return perform()
      }),
    )
    await members.at(1).kill()
    assert.equal(claimIn(await store.claim(request)).fence, 7)
    assert.ok(claims >= 3, `member 2 was asked ${claims} times`)
  })

  it('a claim that is about to fail keeps its fence to itself, though only one member knows of it', async (t) => {
    const request = newRequest()
    await plant(t, request, [0], 4)
    await plant(t, request, [1], 5)
    // Its failure has reached member 1 and not yet member 0; member 2 has lost its data.
    assert.equal(claimIn(await (await members.member(t, 0)).claim(rivalOf(request))).fence, 5)
    assert.equal(claimIn(await (await members.client(t, straight, SHORT_TIMEOUT_MS)).claim(request)).fence, 6)
  })

  it('rivals who come and go at one member hold nobody up, and do not change the fence', async (t) => {
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
    assert.equal(claimIn(fulfilled(result)).fence, 1)
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

  it('a key that a majority has released begins anew, whatever a minority remembers', async (t) => {
    const request = newRequest()
    await plant(t, request, [2], 8)
    assert.equal(claimIn(await (await members.client(t)).claim(request)).fence, 1)
  })
}
