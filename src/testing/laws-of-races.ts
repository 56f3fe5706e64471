/** Laws under load: many clients at once, in an order that nobody planned. */

import assert from 'node:assert/strict'
import { randomInt } from 'node:crypto'
import { it } from 'node:test'
import type { Claim, ClaimRequest, ClaimResult } from '../store.ts'
import { LONG_TTL_MS, newRequest, recordIn, responseOf, rivalOf, SHORT_MS, type Trial } from './trial.ts'

const RIVALS = 32
/** More attempts than all rivals together can make while one of them holds the key. */
const STALLED = 10_000

/** Registers the races. */
export function raceLaws(trial: Trial): void {
  rounds(trial)
  turns(trial)
  completions(trial)
}

async function oneClaimed(trial: Trial, request: ClaimRequest): Promise<Claim> {
  const rivals = Array.from({ length: RIVALS }, () => rivalOf(request, { leaseMs: request.leaseMs }))
  const results = await Promise.all(rivals.map((rival, index) => trial.client(index).claim(rival)))
  const claimed = results.filter((result) => result.outcome === 'claimed')
  assert.equal(claimed.length, 1)
  return (claimed[0] as ClaimResult & { outcome: 'claimed' }).claim
}

function rounds(trial: Trial): void {
  it('after every failure one of 32 claims takes over, and no fence is lost or given twice', async () => {
    const request = newRequest()
    let last = 0
    for (let round = 0; round < 12; round++) {
      const claim = await oneClaimed(trial, request)
      trial.expectFence(claim, last + 1)
      last = claim.fence
      assert.equal(await trial.client(round).fail(claim, LONG_TTL_MS), true)
    }
  })

  it('in every lease one of 32 claims takes over, and no fence is lost or given twice', async () => {
    const request = newRequest({ leaseMs: SHORT_MS * 2 })
    let last = 0
    for (let round = 0; round < 4; round++) {
      const claim = await oneClaimed(trial, request)
      trial.expectFence(claim, last + 1)
      last = claim.fence
      await trial.outlast(SHORT_MS * 2)
    }
  })

  it('after every release one of 32 claims gets the key, with fence 1', async () => {
    const request = newRequest()
    for (let round = 0; round < 12; round++) {
      const claim = await oneClaimed(trial, request)
      trial.expectFence(claim, 1)
      assert.equal(await trial.client(round).release(claim), true)
    }
  })
}

function turns(trial: Trial): void {
  it('nobody is claimed while somebody else holds the key, however the calls fall', async () => {
    const relay = new Relay(trial, newRequest())
    await Promise.all(Array.from({ length: RIVALS }, (_, client) => relay.run(client)))
    const record = await trial.client().read(relay.request.scopedKey)
    assert.equal(record?.state, 'completed')
    assert.equal(record?.response?.body, relay.winner)
  })
}

/** Rivals that take the key from each other until one has completed. */
class Relay {
  readonly request: ClaimRequest
  readonly #trial: Trial
  #holder: Claim | undefined
  #nextFence = 1
  #turnsLeft = 40
  #attemptsSinceClaim = 0
  #isBroken = false
  winner: string | undefined

  constructor(trial: Trial, request: ClaimRequest) {
    this.#trial = trial
    this.request = request
  }

  /** Takes turns until somebody has completed. A failure ends it for all, or the others would go on for ever. */
  async run(client: number): Promise<void> {
    try {
      while (this.winner === undefined && !this.#isBroken) await this.#attempt(client)
    } catch (error) {
      this.#isBroken = true
      throw error
    }
  }

  async #attempt(client: number): Promise<void> {
    assert.ok(this.#attemptsSinceClaim++ < STALLED, 'the key was given up, and nobody is claimed any more')
    const result = await this.#trial.client(client).claim(rivalOf(this.request))
    if (result.outcome === 'claimed') return this.#hold(result.claim, client)
    if (result.record.state === 'completed') assert.equal(result.record.response?.body, this.winner)
  }

  async #hold(claim: Claim, client: number): Promise<void> {
    assert.equal(this.#holder, undefined, 'claimed while another claim was held')
    this.#trial.expectFence(claim, this.#nextFence)
    this.#holder = claim
    this.#attemptsSinceClaim = 0
    await this.#trial.client(client + 1).read(claim.scopedKey)
    // Given up before the command is sent: from then on somebody else may be claimed.
    this.#holder = undefined
    const store = this.#trial.client(client)
    if (--this.#turnsLeft <= 0) return this.#finish(claim, client)
    const isRelease = randomInt(3) === 0
    this.#nextFence = isRelease ? 1 : claim.fence + 1
    assert.equal(await (isRelease ? store.release(claim) : store.fail(claim, LONG_TTL_MS)), true)
  }

  async #finish(claim: Claim, client: number): Promise<void> {
    this.winner = claim.token
    assert.equal(await this.#trial.client(client).complete(claim, responseOf(claim.token), LONG_TTL_MS), true)
  }
}

function completions(trial: Trial): void {
  it('a late completion and a takeover at the same time: one of them wins, and the other one knows', async () => {
    const requests = Array.from({ length: RIVALS }, () => newRequest({ leaseMs: SHORT_MS }))
    const claims = await Promise.all(requests.map((request, index) => trial.claim(request, index)))
    await trial.outlast(SHORT_MS)
    await Promise.all(claims.map((claim, index) => lateAgainstTakeover(trial, claim, index)))
  })

  it('claims that meet a completion get the pending record or the completed one, and none is claimed', async () => {
    const request = newRequest()
    const claim = await trial.claim(request)
    const rivals = Array.from({ length: RIVALS }, (_, index) => trial.client(index).claim(rivalOf(request)))
    const completed = trial.client().complete(claim, responseOf('paid'), LONG_TTL_MS)
    for (const result of await Promise.all(rivals)) {
      const { token, state, response } = recordIn(result)
      assert.equal(token, claim.token)
      assert.equal(response?.body, state === 'completed' ? 'paid' : undefined)
    }
    assert.equal(await completed, true)
  })
}

async function lateAgainstTakeover(trial: Trial, claim: Claim, client: number): Promise<void> {
  const [completed, result] = await Promise.all([
    trial.client(client).complete(claim, responseOf('late'), LONG_TTL_MS),
    trial.client(client + 1).claim(rivalOf({ ...newRequest(), ...claim })),
  ])
  assert.equal(result.outcome, completed ? 'exists' : 'claimed')
  if (result.outcome === 'claimed') {
    assert.equal(result.claim.fence, 2)
    return trial.expectRecord(result.claim, 'pending')
  }
  assert.equal(result.record.response?.body, 'late')
  await trial.expectRecord(claim, 'completed', responseOf('late'))
}
