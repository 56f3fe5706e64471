/** What a quorum of redis-servers makes of members that forgot, or never heard. */

import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import type { ClaimResult } from '../src/store.ts'
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

describe('records that members of a quorum have lost', () => forgottenRecords(new Members(3)))

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

  it('a completion that found no majority finds one when it is sent again, once a rival has given a member back', async (t) => {
    const request = newRequest()
    const rival = await members.member(t, 2)
    const passing = claimIn(await rival.claim(rivalOf(request)))
    const store = await members.client(t, straight, SHORT_TIMEOUT_MS)
    const claim = claimIn(await store.claim(request))
    await members.at(1).kill()
    await assert.rejects(store.complete(claim, PAID, TTL_MS), /no majority/)
    await rival.release(passing)
    const isTaken = async () => (await rival.read(request.scopedKey))?.token === claim.token
    await until('the owner to have member 2', isTaken)
    assert.equal(await store.complete(claim, PAID, TTL_MS), true)
    assertReplayed(recordIn(await store.claim(rivalOf(request))))
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
