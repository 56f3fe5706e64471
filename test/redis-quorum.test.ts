/** The quorum store on independent redis-server processes: killed, paused, emptied, and in every order of events. */

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, afterEach, before, describe, it, type TestContext } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { QuorumRedisStore, RedisStore } from 'fastify-idempotency/redis'
import { storeConformance } from 'fastify-idempotency/testing'
import { InvalidOptionError } from '../src/errors.ts'
import type { StoredResponse } from '../src/response.ts'
import type { Claim, ClaimRequest, ClaimResult, IdempotencyRecord, IdempotencyStore } from '../src/store.ts'
import { type RedisServer, startAll, startRedis, stopAll } from './support/redis/servers.ts'
import { gate, intercepted, until } from './support/stores.ts'

const TTL_MS = 3_600_000
const MEMBER_TIMEOUT_MS = 400
const PAID: StoredResponse = { statusCode: 201, headers: {}, body: 'paid', replayable: true }

/** What stands between the quorum and one of its members. */
type Between = (member: IdempotencyStore, index: number) => IdempotencyStore

/** The servers of a suite, as they were before each of its tests: running, empty or not. */
class Members {
  readonly servers: RedisServer[] = []

  constructor(count: number) {
    before(async () => {
      this.servers.push(...(await startAll(Array.from({ length: count }, () => startRedis({})))))
    })
    afterEach(async () => {
      for (const server of this.servers) if (!server.isResponsive) await server.restart()
    })
    after(() => stopAll(this.servers))
  }

  at(index: number): RedisServer {
    return this.servers.at(index) as RedisServer
  }

  /** A process of its own, as far as the servers can tell: connections of its own, all up. */
  async client(t: TestContext, between: Between = (member) => member): Promise<QuorumRedisStore> {
    const members = this.servers.map(({ url }) => new RedisStore({ url }))
    await Promise.all(members.map((member) => member.check()))
    const stores = members.map((member, index) => between(member, index))
    const store = new QuorumRedisStore({ stores, memberTimeoutMs: MEMBER_TIMEOUT_MS })
    t.after(() => Promise.all([store.close(), ...members.map((member) => member.close())]))
    return store
  }

  /** One member by itself. */
  async member(t: TestContext, index: number): Promise<RedisStore> {
    const store = new RedisStore({ url: this.at(index).url })
    t.after(() => store.close())
    await store.check()
    return store
  }

  /** Which members have a record of this key. */
  async having({ scopedKey }: { scopedKey: string }): Promise<number[]> {
    const counts = await Promise.all(this.servers.map((server) => server.cli('exists', scopedKey)))
    return counts.flatMap((count, index) => (count === '1' ? [index] : []))
  }

  async untilHaving(request: { scopedKey: string }, members: readonly number[]): Promise<void> {
    const isSo = async () => String(await this.having(request)) === String(members)
    await until(`the key to be on [${members}] only`, isSo)
  }
}

function newRequest(changes: Partial<ClaimRequest> = {}): ClaimRequest {
  const scopedKey = `idem#v1#quorum#POST:/payments#${randomUUID()}`
  const durations = { leaseMs: 60_000, ttlMs: TTL_MS }
  return { scopedKey, fingerprint: 'f', token: randomUUID(), ...durations, takeOverExpired: true, ...changes }
}

function rivalOf(request: ClaimRequest): ClaimRequest {
  return { ...request, token: randomUUID() }
}

function claimIn(result: ClaimResult): Claim {
  assert.ok(result.outcome === 'claimed', `not claimed: ${JSON.stringify(result)}`)
  return result.claim
}

function recordIn(result: ClaimResult): IdempotencyRecord {
  assert.ok(result.outcome === 'exists', 'claimed a second time')
  return result.record
}

function assertReplayed(record: IdempotencyRecord | undefined): void {
  assert.equal(record?.state, 'completed')
  assert.equal(record?.response?.body, 'paid')
}

/** What `work` comes to, and how long it takes. */
async function timed<Result>(work: Promise<Result>): Promise<{ ms: number; result: PromiseSettledResult<Result> }> {
  const startedAt = performance.now()
  const [result] = await Promise.allSettled([work])
  return { ms: performance.now() - startedAt, result }
}

/** A failing way to one of the members, for calls by this client only. */
function cutOff(...cut: readonly number[]): Between {
  return (member, index) => {
    if (!cut.includes(index)) return member
    return intercepted(member, async () => {
      throw new Error(`member ${index} is cut off`)
    })
  }
}

type Loss = (server: RedisServer) => Promise<void>
const LOSSES: Readonly<Record<string, Loss>> = {
  killed: (server) => server.kill(),
  paused: (server) => server.pause(),
}

describe('a quorum of redis-servers', { concurrency: 2 }, () => {
  describe('keeps the laws of a store', () => {
    const members = new Members(3)
    storeConformance(async () => {
      const store = new QuorumRedisStore({ stores: members.servers.map(({ url }) => new RedisStore({ url })) })
      await store.check()
      return store
    })
  })

  describe('when members misbehave', { concurrency: 1 }, () => {
    describe('without a minority of three', () => lossesOfMinorities(new Members(3), [[0], [2]]))
    describe('without a minority of five', () => lossesOfMinorities(new Members(5), [[0, 3]]))
    describe('without a majority', () => lossesOfMajorities(new Members(3)))
    describe('votes', () => votes(new Members(3)))
    describe('forgotten records', () => forgottenRecords(new Members(3)))
    describe('fences', () => fences(new Members(3)))
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

/** Claim, conflict, renewal, completion, replay, and all of it fast. */
async function expectSteps(store: IdempotencyStore, request: ClaimRequest): Promise<void> {
  const startedAt = performance.now()
  const claim = claimIn(await store.claim(request))
  assert.equal(recordIn(await store.claim(rivalOf(request))).token, claim.token)
  assert.equal(await store.renew(claim, 60_000), true)
  assert.equal(await store.renew({ ...claim, token: randomUUID() }, 60_000), false)
  assert.equal(await store.complete(claim, PAID, TTL_MS), true)
  assertReplayed(recordIn(await store.claim(rivalOf(request))))
  const ms = performance.now() - startedAt
  assert.ok(ms < MEMBER_TIMEOUT_MS, `six steps took ${ms} ms: somebody waited for a lost member`)
}

function lossesOfMajorities(members: Members): void {
  for (const [what, lose] of Object.entries(LOSSES)) {
    it(`every call is rejected in bounded time, and nothing is claimed: two of three members ${what}`, async (t) => {
      const store = await members.client(t)
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
        assert.equal(result.status, 'rejected')
        assert.match(String(result.status === 'rejected' && result.reason), /no majority \(2 of 3 Redis\)/)
        assert.ok(ms < 2 * MEMBER_TIMEOUT_MS, `it took ${ms} ms`)
      }
    })
  }

  it('what a paused majority makes of a rejected claim later is given back', async (t) => {
    const store = await members.client(t)
    const request = newRequest()
    await Promise.all([members.at(0).pause(), members.at(1).pause()])
    await assert.rejects(store.claim(request), /no majority/)
    members.at(0).resume()
    members.at(1).resume()
    await members.untilHaving(request, [])
    claimIn(await store.claim(rivalOf(request)))
  })
}

function votes(members: Members): void {
  it('a minority that took the claim is released, and the majority keeps its own', async (t) => {
    const request = newRequest()
    const owner = claimIn(await (await members.client(t, cutOff(0))).claim(request))
    assert.deepEqual(await members.having(request), [1, 2])
    const store = await members.client(t)
    assert.equal(recordIn(await store.claim(rivalOf(request))).token, owner.token)
    await members.untilHaving(request, [1, 2])
  })

  it('a minority that took the claim only after the answer is released all the same', async (t) => {
    const request = newRequest()
    claimIn(await (await members.client(t, cutOff(2))).claim(request))
    const store = await members.client(t)
    await members.at(2).pause()
    const taken = await members.at(0).cli('get', request.scopedKey)
    recordIn(await store.claim(rivalOf(request)))
    members.at(2).resume()
    const isTakenAndReleased = async () =>
      /calls=[1-9]/.test(await commandStats(members.at(2), 'set')) && !(await members.having(request)).includes(2)
    await until('the late claim to be made and released', isTakenAndReleased)
    assert.equal(await members.at(0).cli('get', request.scopedKey), taken)
  })

  it('a claim that only a minority could take is released, and rejected', async (t) => {
    const request = newRequest()
    await assert.rejects((await members.client(t, cutOff(0, 1))).claim(request), /member 0 is cut off; member 1/)
    await members.untilHaving(request, [])
  })

  it('a member whose answer got lost after it took the claim is released', async (t) => {
    const request = newRequest()
    claimIn(await (await members.client(t, cutOff(0))).claim(request))
    const store = await members.client(t, (member, index) =>
      intercepted(member, async (operation, perform) => {
        const result = await perform()
        if (index === 0 && operation === 'claim') throw new Error('the connection is gone')
        return result
      }),
    )
    recordIn(await store.claim(rivalOf(request)))
    await members.untilHaving(request, [1, 2])
  })

  it('the owner takes the member that a rival had for a moment, so that its record is on all', async (t) => {
    const request = newRequest()
    const rival = await members.member(t, 1)
    const passing = claimIn(await rival.claim(rivalOf(request)))
    const claim = claimIn(await (await members.client(t)).claim(request))
    await rival.release(passing)
    await until('the owner to have member 1', async () => (await rival.read(request.scopedKey))?.token === claim.token)
  })

  it('the end of a claim waits for a member that a rival is giving back, so that nothing of it stays behind', async (t) => {
    const request = newRequest()
    const rival = await members.member(t, 2)
    const passing = claimIn(await rival.claim(rivalOf(request)))
    const store = await members.client(t)
    const claim = claimIn(await store.claim(request))
    await store.read(request.scopedKey) // by now member 2 has told who holds it
    const releasing = store.release(claim)
    await rival.release(passing)
    assert.equal(await releasing, true)
    await members.untilHaving(request, [])
    await sleep(MEMBER_TIMEOUT_MS / 4) // after which nobody tries to take it any more
    assert.deepEqual(await members.having(request), [])
  })

  it('a vote is not counted while its release is under way: it could be gone in the next moment', async (t) => {
    const request = newRequest()
    const first = await members.member(t, 0)
    claimIn(await first.claim(rivalOf(request)))
    const last = await members.member(t, 2)
    const passing = claimIn(await last.claim(rivalOf(request)))
    const releasing = gate()
    let isStarted = false
    const store = await members.client(t, (member, index) =>
      intercepted(member, async (operation, perform) => {
        if (index === 1 && operation === 'release' && !isStarted) {
          isStarted = true
          await releasing.opened
        }
        return perform()
      }),
    )
    const claiming = timed(store.claim(request))
    await until('member 1 to be given back', () => isStarted)
    await last.release(passing)
    const { result } = await claiming
    releasing.open()
    assert.equal(result.status, 'rejected', 'claimed with a vote that was being given back')
    await members.untilHaving(request, [0])
  })

  it('a member that is held by a rival who died is no obstacle', async (t) => {
    const request = newRequest()
    claimIn(await (await members.member(t, 0)).claim(rivalOf(request)))
    const store = await members.client(t)
    await expectSteps(store, request)
    const { ms, result } = await timed(store.release({ ...request, fence: 1 }))
    assert.ok(result.status === 'fulfilled' && ms < MEMBER_TIMEOUT_MS)
  })

  it('of three rivals who got one member each, exactly one is claimed, and the others are told who', async (t) => {
    for (const failed of [false, true]) {
      const request = newRequest()
      if (failed) await (await members.client(t)).fail(claimIn(await (await members.client(t)).claim(request)), TTL_MS)
      // Rival n asks member n first; the other members hear of a claim only when all three have got theirs.
      const all = gate()
      let got = 0
      const rivals = [0, 1, 2].map((rival) =>
        members.client(t, (member, index) =>
          intercepted(member, async (operation, perform) => {
            if (operation !== 'claim' || got === 3) return perform()
            if (index !== rival) await all.opened
            const result = await perform()
            if (index === rival && ++got === 3) all.open()
            return result
          }),
        ),
      )
      const clients = await Promise.all(rivals)
      const results = await Promise.all(clients.map((client) => client.claim(rivalOf(request))))
      assert.equal(got, 3)
      expectOneClaimed(results, failed ? 2 : 1)
    }
  })

  it('two rivals whose claims reach the members in 200 different orders: never two are claimed', async (t) => {
    const turns = new Turns()
    const clients = await Promise.all([0, 1].map((rival) => members.client(t, turns.between(rival))))
    const splits = new Set<string>()
    for (let round = 0; round < 200; round++) {
      const request = newRequest()
      // Each third round over a failed record, so that both take over.
      const isTakeover = round % 3 === 0
      if (isTakeover) await clients[0]?.fail(claimIn((await clients[0]?.claim(request)) as ClaimResult), TTL_MS)
      turns.begin(round)
      const results = await Promise.all(clients.map((client) => client.claim(rivalOf(request))))
      splits.add(turns.taken())
      const claim = expectOneClaimed(results, isTakeover ? 2 : 1)
      assert.equal(await clients[0]?.complete(claim, PAID, TTL_MS), true)
    }
    assert.equal(splits.size, 8, `the members were not taken in all ways: ${[...splits]}`)
  })
}

async function commandStats(server: RedisServer, command: string): Promise<string> {
  const stats = await server.cli('info', 'commandstats')
  return new RegExp(`cmdstat_${command}:.*`).exec(stats)?.[0] ?? ''
}

function expectOneClaimed(results: readonly ClaimResult[], fence: number): Claim {
  const claims = results.flatMap((result) => (result.outcome === 'claimed' ? [result.claim] : []))
  assert.equal(claims.length, 1, `${claims.length} were claimed`)
  const [claim] = claims as [Claim]
  assert.equal(claim.fence, fence)
  for (const result of results) if (result.outcome === 'exists') assert.equal(result.record.token, claim.token)
  return claim
}

const THREE_EACH = [0, 1, 2].flatMap((member) => [0, 1].map((rival) => `${rival}-${member}`))
const ORDERS = permutations(THREE_EACH)

function permutations(items: readonly string[]): string[][] {
  if (items.length <= 1) return [[...items]]
  return items.flatMap((item) => permutations(items.filter((other) => other !== item)).map((rest) => [item, ...rest]))
}

/** Lets the first claims of two rivals at three members happen one after the other, in a given order. */
class Turns {
  #order: readonly string[] = []
  #arrived = new Map<string, () => Promise<unknown>>()
  #winners = new Map<string, string>()

  begin(round: number): void {
    // 7 and 720 have no divisor in common: all orders are equally likely to be met.
    this.#order = ORDERS[(round * 7 * 17) % ORDERS.length] as string[]
    this.#arrived = new Map()
    this.#winners = new Map()
  }

  /** Who got each of the members at first. */
  taken(): string {
    return [0, 1, 2].map((member) => this.#winners.get(String(member))).join('')
  }

  between(rival: number): Between {
    return (member, index) =>
      intercepted(member, (operation, perform) => {
        const turn = `${rival}-${index}`
        const isFirst = operation === 'claim' && this.#order.includes(turn) && !this.#arrived.has(turn)
        return isFirst ? this.#inTurn(turn, perform) : perform()
      })
  }

  #inTurn(turn: string, perform: () => Promise<unknown>): Promise<unknown> {
    return new Promise((resolve, reject) => {
      this.#arrived.set(turn, () => perform().then(resolve, reject))
      if (this.#arrived.size === this.#order.length) void this.#performAll()
    })
  }

  async #performAll(): Promise<void> {
    for (const turn of this.#order) {
      const [rival = '', member = ''] = turn.split('-')
      if (!this.#winners.has(member)) this.#winners.set(member, rival)
      await this.#arrived.get(turn)?.()
    }
  }
}

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
    assert.ok(result.status === 'fulfilled')
    assert.equal(recordIn(result.value).fingerprint, 'f')
    assert.ok(ms < MEMBER_TIMEOUT_MS / 2)
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
    assert.ok(claims >= 3)
  })

  it('a claim that is about to fail keeps its fence to itself, though only one member knows of it', async (t) => {
    const request = newRequest()
    await plant(t, request, [0], 4)
    await plant(t, request, [1], 5)
    // Its failure has reached member 1 and not yet member 0; member 2 has lost its data.
    assert.equal(claimIn(await (await members.member(t, 0)).claim(rivalOf(request))).fence, 5)
    assert.equal(claimIn(await (await members.client(t)).claim(request)).fence, 6)
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
    assert.ok(result.status === 'fulfilled')
    assert.equal(claimIn(result.value).fence, 1)
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

  it('a key that a majority has released begins anew, whatever a minority remembers', async (t) => {
    const request = newRequest()
    await plant(t, request, [2], 8)
    assert.equal(claimIn(await (await members.client(t)).claim(request)).fence, 1)
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
    assert.match(String(result.status === 'rejected' && result.reason), /not within its lease/)
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
    assert.match(String(result.status === 'rejected' && result.reason), /renew, not within its lease/)
  })
}

function startAndEnd(members: Members): void {
  it('the check tells the warnings of each member, and how many members to use', async (t) => {
    const store = await members.client(t)
    const warnings = await store.check()
    assert.equal(warnings.filter((warning) => /^Redis [123] of 3: .*append-only/.test(warning)).length, 3)
    assert.ok(!warnings.some((warning) => /three or five/.test(warning)))
    const stores = [await members.member(t, 0), await members.member(t, 1)]
    assert.match((await new QuorumRedisStore({ stores }).check()).join(), /quorum of 2 Redis .* three or five/)
  })

  it('a minority that cannot be checked is a warning; a majority, or strict, refuses to start', async () => {
    const check = (...results: (string[] | Error)[]) =>
      results.map((result) => ({
        ...new RecordlessStore(),
        check: async () => {
          if (result instanceof Error) throw result
          return result
        },
      })) as unknown as IdempotencyStore[]
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
    const stores = [0, 1, 2].map((index) => ({
      close: async () => {
        if (index === 1) throw new Error('no')
        closed.push(index)
      },
    })) as unknown as IdempotencyStore[]
    await new QuorumRedisStore({ stores }).close()
    assert.deepEqual(closed, [0, 2])
  })

  it('wrong options are refused by name', () => {
    const stores = [new RecordlessStore()] as unknown as IdempotencyStore[]
    assert.throws(() => new QuorumRedisStore({ stores: [] }), InvalidOptionError)
    assert.throws(() => new QuorumRedisStore({ stores, memberTimeoutMs: 0 }), /memberTimeoutMs/)
    assert.throws(() => new QuorumRedisStore({ stores, memberTimeoutMs: 2 ** 31 }), /memberTimeoutMs/)
  })
}

class RecordlessStore {
  readonly name = 'recordless'
}
