/** Rivals at a quorum of redis-servers: one is claimed, and what the others took is given back. */

import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Claim, ClaimResult } from '../src/store.ts'
import {
  type Between,
  claimIn,
  cutOff,
  expectSteps,
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
import type { RedisServer } from './support/redis/servers.ts'
import { gate, until } from './support/stores.ts'

describe('votes at a quorum of redis-servers', () => votes(new Members(3)))

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

  it('the owner takes also the member that rivals held on to, one after the other, until they gave up', async (t) => {
    const request = newRequest()
    const rival = await members.member(t, 1)
    const passing = claimIn(await rival.claim(rivalOf(request)))
    const claim = claimIn(await (await members.client(t, straight, SHORT_TIMEOUT_MS)).claim(request))
    await sleep(3 * SHORT_TIMEOUT_MS)
    await rival.release(passing)
    await until('the owner to have member 1', async () => (await rival.read(request.scopedKey))?.token === claim.token)
  })

  it('close does not wait for the member that a rival has', async (t) => {
    const request = newRequest()
    claimIn(await (await members.member(t, 1)).claim(rivalOf(request)))
    const store = await members.client(t)
    claimIn(await store.claim(request))
    const { ms } = await timed(store.close())
    assert.ok(ms < MEMBER_TIMEOUT_MS / 2, `${ms} ms`)
  })

  it('the end of a claim waits for a member that a rival is giving back, so that nothing of it stays behind', async (t) => {
    const request = newRequest()
    const rival = await members.member(t, 2)
    const passing = claimIn(await rival.claim(rivalOf(request)))
    const store = await members.client(t, straight, SHORT_TIMEOUT_MS)
    const claim = claimIn(await store.claim(request))
    await store.read(request.scopedKey) // by now member 2 has told who holds it
    const releasing = store.release(claim)
    await rival.release(passing)
    assert.equal(await releasing, true)
    await members.untilHaving(request, [])
    await sleep(SHORT_TIMEOUT_MS / 4) // after which nobody tries to take it any more
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
    const between: Between = (member, index) =>
      intercepted(member, async (operation, perform) => {
        if (index === 1 && operation === 'giveBack' && !isStarted) {
          isStarted = true
          await releasing.opened
        }
        return perform()
      })
    const store = await members.client(t, between, SHORT_TIMEOUT_MS)
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
