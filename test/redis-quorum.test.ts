/** The quorum store on independent redis-server processes: its laws, and the loss of members in each phase. */

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, it } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { QuorumRedisStore, RedisStore } from 'fastify-idempotency/redis'
import { storeConformance } from 'fastify-idempotency/testing'
import { MemoryStore } from '../src/index.ts'
import type { IdempotencyStore } from '../src/store.ts'
import {
  assertReplayed,
  type Between,
  claimIn,
  expectSteps,
  intercepted,
  MEMBER_TIMEOUT_MS,
  Members,
  newRequest,
  PAID,
  reasonOf,
  recordIn,
  rivalOf,
  SHORT_TIMEOUT_MS,
  straight,
  TTL_MS,
  timed,
} from './support/redis/quorum.ts'
import type { RedisServer } from './support/redis/servers.ts'
import { gate } from './support/stores.ts'

type Loss = (server: RedisServer) => Promise<void>
const LOSSES: Readonly<Record<string, Loss>> = {
  killed: (server) => server.kill(),
  paused: (server) => server.pause(),
}

describe('a quorum of redis-servers', { concurrency: 2 }, () => {
  describe('keeps the laws of a store', () => {
    const members = new Members(3)
    const openStore = async () => {
      const stores = members.servers.map(({ url }) => new RedisStore({ url }))
      const store = new QuorumRedisStore({ stores, memberTimeoutMs: MEMBER_TIMEOUT_MS })
      await store.check()
      return store
    }
    storeConformance(openStore, { fencesMaySkip: true })
  })

  describe('when members misbehave', { concurrency: 1 }, () => {
    describe('without a minority of three', () => lossesOfMinorities(new Members(3), [[0], [2]]))
    describe('without a minority of five', () => lossesOfMinorities(new Members(5), [[0, 3]]))
    describe('without a majority', () => lossesOfMajorities(new Members(3)))
    describe('leases', () => leases(new Members(3)))
    describe('start and end', () => startAndEnd(new Members(3)))
  })
})

function lossesOfMinorities(members: Members, minorities: readonly (readonly number[])[]): void {
  for (const [what, lose] of Object.entries(LOSSES)) {
    for (const minority of minorities) {
      const lost = `members ${minority} ${what}`
      const loseThem = () => Promise.all(minority.map((index) => lose(members.at(index))))

      it(`a request goes through all its steps, and none waits for the lost: ${lost} before the claim`, async (t) => {
        const store = await members.client(t)
        await loseThem()
        await expectSteps(store, newRequest())
      })

      it(`a claim that was made stays made, and its completion is found: ${lost} while the handler runs`, async (t) => {
        const store = await members.client(t)
        const request = newRequest()
        const claim = claimIn(await store.claim(request))
        await loseThem()
        assert.equal(recordIn(await store.claim(rivalOf(request))).state, 'pending')
        assert.equal(await store.renew(claim, 60_000), true)
        assert.equal(await store.complete(claim, PAID, TTL_MS), true)
        assertReplayed(recordIn(await store.claim(rivalOf(request))))
      })

      it(`a completed record is replayed: ${lost} after the completion`, async (t) => {
        const store = await members.client(t)
        const request = newRequest()
        await store.complete(claimIn(await store.claim(request)), PAID, TTL_MS)
        await loseThem()
        for (let retry = 0; retry < 5; retry++) assertReplayed(recordIn(await store.claim(rivalOf(request))))
        assertReplayed(await store.read(request.scopedKey))
      })

      it(`a failed record is taken over with the next fence: ${lost} after the failure`, async (t) => {
        const store = await members.client(t)
        const request = newRequest()
        await store.fail(claimIn(await store.claim(request)), TTL_MS)
        await loseThem()
        assert.equal(claimIn(await store.claim(rivalOf(request))).fence, 2)
      })

      it(`no key is claimed twice by rivals: ${lost} in the middle of it`, async (t) => {
        const clients = await Promise.all([members.client(t), members.client(t)])
        const keys = Array.from({ length: 60 }, () => newRequest())
        const claims = keys.flatMap((request) => [0, 1, 0, 1].map((client) => clients[client]?.claim(rivalOf(request))))
        await loseThem()
        const late = keys.flatMap((request) => clients.map((client) => client.claim(rivalOf(request))))
        const results = await Promise.allSettled([...claims, ...late])
        const claimed = results.flatMap((result) =>
          result.status === 'fulfilled' && result.value?.outcome === 'claimed' ? [result.value.claim.scopedKey] : [],
        )
        assert.equal(new Set(claimed).size, claimed.length, 'a key was claimed twice')
        assert.ok(claimed.length > keys.length / 2, `only ${claimed.length} of ${keys.length} keys were claimed at all`)
      })
    }
  }
}

function lossesOfMajorities(members: Members): void {
  for (const [what, lose] of Object.entries(LOSSES)) {
    it(`every call is rejected in bounded time, and nothing is claimed: two of three members ${what}`, async (t) => {
      const store = await members.client(t, straight, SHORT_TIMEOUT_MS)
      const known = claimIn(await store.claim(newRequest()))
      await Promise.all([lose(members.at(0)), lose(members.at(1))])
      const calls: Promise<unknown>[] = [
        store.claim(newRequest()),
        store.claim(rivalOf({ ...newRequest(), ...known })),
        store.complete(known, PAID, TTL_MS),
        store.renew(known, 60_000),
        store.fail(known, TTL_MS),
        store.release({ ...known, token: randomUUID() }),
        store.read(known.scopedKey),
      ]
      for (const { ms, result } of await Promise.all(calls.map((call) => timed(call)))) {
        assert.match(reasonOf(result), /no majority \(2 of 3 Redis\)/)
        assert.ok(ms < SHORT_TIMEOUT_MS + 1_500, `it took ${ms} ms`)
      }
    })
  }

  it('what a paused majority makes of a rejected claim later is given back', async (t) => {
    const store = await members.client(t, straight, SHORT_TIMEOUT_MS)
    const request = newRequest()
    await Promise.all([members.at(0).pause(), members.at(1).pause()])
    await assert.rejects(store.claim(request), /no majority/)
    members.at(0).resume()
    members.at(1).resume()
    await members.untilHaving(request, [])
    claimIn(await store.claim(rivalOf(request)))
  })
}

function leases(members: Members): void {
  const LEASE_MS = 300

  /** Holds the answers of these members back until `open` is called; the calls themselves are made. */
  const slowAnswers = (slow: readonly number[]) => {
    const answers = gate()
    const between: Between = (member, index) =>
      intercepted(member, async (operation, perform) => {
        const result = await perform()
        if (operation === 'claim' && slow.includes(index)) await answers.opened
        return result
      })
    return { between, open: answers.open }
  }

  it('a majority that answers when the lease is nearly over: rejected, and released everywhere', async (t) => {
    const { between, open } = slowAnswers([1, 2])
    const store = await members.client(t, between)
    const request = newRequest({ leaseMs: LEASE_MS })
    const claiming = timed(store.claim(request))
    await members.untilHaving(request, [0, 1, 2])
    await sleep(LEASE_MS * 0.9)
    open()
    const { result } = await claiming
    assert.match(reasonOf(result), /not within its lease/)
    await members.untilHaving(request, [])
  })

  it('a majority that answers while the lease is good: claimed', async (t) => {
    const { between, open } = slowAnswers([1, 2])
    const store = await members.client(t, between)
    const request = newRequest({ leaseMs: 10_000 })
    const claiming = store.claim(request)
    await members.untilHaving(request, [0, 1, 2])
    open()
    assert.equal(claimIn(await claiming).fence, 1)
  })

  it('a minority that never answers costs nothing of the lease', async (t) => {
    const { between } = slowAnswers([2])
    const store = await members.client(t, between)
    const { ms } = await timed(store.claim(newRequest({ leaseMs: LEASE_MS })))
    assert.ok(ms < LEASE_MS / 2, `${ms} ms`)
  })

  it('a renewal that took as long as the lease it asked for is not relied on', async (t) => {
    const renewing = gate()
    const store = await members.client(t, (member, index) =>
      intercepted(member, async (operation, perform) => {
        const result = await perform()
        if (operation === 'renew' && index !== 0) await renewing.opened
        return result
      }),
    )
    const claim = claimIn(await store.claim(newRequest()))
    const renewed = timed(store.renew(claim, 20))
    await sleep(20)
    renewing.open()
    const { result } = await renewed
    assert.match(reasonOf(result), /renew, not within its lease/)
  })
}

function startAndEnd(members: Members): void {
  it('the check tells the warnings of each member, and how many members to use', async (t) => {
    const store = await members.client(t)
    const warnings = await store.check()
    assert.equal(warnings.filter((warning) => /^Redis [123] of 3: .*append-only/.test(warning)).length, 3)
    assert.doesNotMatch(warnings.join(), /three or five/)
    const stores = [await members.member(t, 0), await members.member(t, 1)]
    assert.match((await new QuorumRedisStore({ stores }).check()).join(), /quorum of 2 Redis .* three or five/)
  })

  it('a minority that cannot be checked is a warning; a majority, or strict, refuses to start', async () => {
    const check = (...results: (string[] | Error)[]) =>
      results.map((result): IdempotencyStore => {
        const check = async () => {
          if (result instanceof Error) throw result
          return result
        }
        return Object.assign(new MemoryStore(), { check })
      })
    const down = new Error('not reachable')
    assert.deepEqual(await new QuorumRedisStore({ stores: check([], down, []) }).check(), [
      'Redis 2 of 3: not reachable',
    ])
    await assert.rejects(new QuorumRedisStore({ stores: check(down, [], down) }).check(), /Redis 3 of 3: not reachable/)
    await assert.rejects(new QuorumRedisStore({ stores: check([], ['unsafe'], []), strict: true }).check(), /unsafe/)
    assert.deepEqual(await new QuorumRedisStore({ stores: check([], [], []), strict: true }).check(), [])
  })

  it('close closes all members, also when one does not', async () => {
    const closed: number[] = []
    const stores = [0, 1, 2].map((index): IdempotencyStore => {
      const close = async () => {
        if (index === 1) throw new Error('no')
        closed.push(index)
      }
      return Object.assign(new MemoryStore(), { close })
    })
    await new QuorumRedisStore({ stores }).close()
    assert.deepEqual(closed, [0, 2])
  })
}
