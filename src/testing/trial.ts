/** One run of the suite: the clients it opened, the time it lets pass, and the questions its tests ask. */

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, it } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type { StoredResponse } from '../response.ts'
import type { Claim, ClaimRequest, ClaimResult, IdempotencyRecord, IdempotencyStore, RecordState } from '../store.ts'
import type { StoreCapabilities } from './capabilities.ts'
import { through, type Wire } from './faults.ts'

const CLIENTS = 4
/** Real timers may fire a millisecond early and servers round: what is waited for is over by this much. */
const SLACK_MS = 20

/** A lease that does not run out during a test. */
export const LONG_LEASE_MS = 60_000
/** A ttl that does not end during a test. */
export const LONG_TTL_MS = 3_600_000
/** A lease or ttl that a test outlasts. */
export const SHORT_MS = 300
/** The same, for tests that must get something done before it is over. */
export const WINDOW_MS = 1_200

/** A claim request for a key of its own, with durations that do not end during a test. */
export function newRequest(changes: Partial<ClaimRequest> = {}): ClaimRequest {
  return {
    scopedKey: `idem#v1#conformance#POST:/laws#${randomUUID()}`,
    fingerprint: randomUUID(),
    token: randomUUID(),
    leaseMs: LONG_LEASE_MS,
    ttlMs: LONG_TTL_MS,
    takeOverExpired: true,
    ...changes,
  }
}

/** What another attempt with the same key and the same request asks for: a token of its own. */
export function rivalOf(request: ClaimRequest, changes: Partial<ClaimRequest> = {}): ClaimRequest {
  return { ...request, token: randomUUID(), leaseMs: LONG_LEASE_MS, ttlMs: LONG_TTL_MS, ...changes }
}

/** A small response, told apart from others by its text. */
export function responseOf(text: string): StoredResponse {
  return { statusCode: 201, headers: { 'content-type': 'text/plain' }, body: text, replayable: true }
}

/** The claim in an answer that must say `claimed`, made for this request. */
export function claimIn(result: ClaimResult, request: ClaimRequest): Claim {
  assert.equal(result.outcome, 'claimed')
  const { claim } = result as ClaimResult & { outcome: 'claimed' }
  assert.equal(claim.scopedKey, request.scopedKey)
  assert.equal(claim.fingerprint, request.fingerprint)
  assert.equal(claim.token, request.token)
  return claim
}

/** The record in an answer that must say `exists`. */
export function recordIn(result: ClaimResult): IdempotencyRecord {
  assert.equal(result.outcome, 'exists')
  return (result as ClaimResult & { outcome: 'exists' }).record
}

/** Asserts whose record it is, and its state. */
export function assertRecord(record: IdempotencyRecord | undefined, claim: Claim, state: RecordState): void {
  assert.ok(record !== undefined, `the ${state} record is gone`)
  const { scopedKey, fingerprint, token, fence } = record
  const owner = { scopedKey: claim.scopedKey, fingerprint: claim.fingerprint, token: claim.token, fence: claim.fence }
  assert.deepEqual({ scopedKey, fingerprint, token, fence }, owner)
  assert.equal(record.state, state)
  if (state !== 'pending') assert.equal(record.leaseRemainingMs, 0)
  if (state !== 'completed') assert.equal(record.response, undefined)
}

/** Asserts that a response came back as it was recorded: type and bytes of the body, order of repeated headers. */
export function assertResponse(actual: StoredResponse | undefined, expected: StoredResponse): void {
  assert.ok(actual !== undefined, 'the response is missing')
  assert.equal(actual.statusCode, expected.statusCode)
  assert.equal(actual.replayable, expected.replayable)
  assert.deepEqual({ ...actual.headers }, { ...expected.headers })
  assert.equal(typeof actual.body, typeof expected.body)
  assert.equal(Buffer.isBuffer(actual.body), Buffer.isBuffer(expected.body))
  // Not deepEqual: on a failure it would print a mebibyte.
  assert.ok(bytesOf(actual).equals(bytesOf(expected)), 'the body came back with other bytes')
}

function bytesOf({ body }: StoredResponse): Buffer {
  return typeof body === 'string' ? Buffer.from(body) : (body ?? Buffer.alloc(0))
}

/** Clients of one store behind one wire, opened before the enclosing suite's tests and closed after them. */
export class Trial {
  readonly capabilities: StoreCapabilities
  readonly wire: Wire
  readonly marginMs: number
  readonly #opened: IdempotencyStore[] = []

  constructor(
    factory: () => IdempotencyStore | Promise<IdempotencyStore>,
    capabilities: StoreCapabilities,
    wire: Wire,
  ) {
    this.capabilities = capabilities
    this.wire = wire
    this.marginMs = capabilities.clockMarginMs ?? 0
    const clients = (capabilities.sharedState ?? true) ? CLIENTS : 1
    before(async () => {
      while (this.#opened.length < clients) this.#opened.push(await factory())
    })
    after(async () => {
      for (const store of this.#opened) await store.close?.()
    })
  }

  /** One of the clients, the same for the same number; different numbers are different clients where there are any. */
  client(number = 0): IdempotencyStore {
    const store = this.#opened[number % this.#opened.length]
    assert.ok(store !== undefined, 'the factory has not opened a client')
    return through(this.wire, store)
  }

  /** Asserts the fence of a claim, or, of a store whose fences may skip, that it is no lower. */
  expectFence({ fence }: Claim, expected: number): void {
    if (this.capabilities.fencesMaySkip) assert.ok(fence >= expected, `fence ${fence}, although ${expected} is due`)
    else assert.equal(fence, expected)
  }

  /** How many tests that wait may run at a time: with a clock that is moved, one. */
  get concurrency(): number {
    return this.capabilities.advance === undefined ? 32 : 1
  }

  /** Lets time pass at the store. */
  async pass(ms: number): Promise<void> {
    await (this.capabilities.advance ?? sleep)(ms)
  }

  /** Lets a lease or ttl of `ms` that begins now end, for certain. */
  outlast(ms: number): Promise<void> {
    return this.pass(ms + this.marginMs + SLACK_MS)
  }

  /** Claims a key that must be free for the request. */
  async claim(request: ClaimRequest = newRequest(), client = 0): Promise<Claim> {
    return claimIn(await this.client(client).claim(request), request)
  }

  /** Takes a record over, asserting that the store says why. */
  async takeOver(request: ClaimRequest, why: 'failed' | 'expired', client = 1): Promise<Claim> {
    const result = await this.client(client).claim(request)
    const claim = claimIn(result, request)
    const { takenOver } = result as ClaimResult & { outcome: 'claimed' }
    // Executed twice, the second time finds its own token, and may have forgotten what it took over.
    if (!this.wire.sendsTwice || takenOver !== 'no') assert.equal(takenOver, why)
    return claim
  }

  /** Releases; a release that was executed twice says false, because the first one did it. */
  async release(claim: Claim): Promise<void> {
    const released = await this.client().release(claim)
    if (!this.wire.sendsTwice) assert.equal(released, true)
  }

  /** Asserts that `read` on any client, and a claim by somebody else, find this record. */
  async expectRecord(claim: Claim, state: RecordState, response?: StoredResponse): Promise<void> {
    const found = await this.client(1).read(claim.scopedKey)
    assertRecord(found, claim, state)
    if (response !== undefined) assertResponse(found?.response, response)
  }

  /** Asserts that nothing is left of a key: to `read`, and to a claim with another request, which gets fence 1. */
  async expectAbsent(scopedKey: string): Promise<void> {
    assert.equal(await this.client(1).read(scopedKey), undefined)
    assert.equal((await this.claim(newRequest({ scopedKey }), 2)).fence, 1)
  }

  /** The last test of a group with faults: they did happen, or the group has proved nothing. */
  expectFaults(what: string): void {
    it(`${what}, so that this group has proved something`, () => {
      assert.ok(this.wire.faults() > 0)
    })
  }
}
