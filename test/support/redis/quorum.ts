/** Clients of a quorum over real redis-servers, each with connections of its own, and what stands between. */

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, afterEach, before, type TestContext } from 'node:test'
import { QuorumRedisStore, RedisStore } from 'fastify-idempotency/redis'
import type { StoredResponse } from '../../../src/response.ts'
import type { Claim, ClaimRequest, ClaimResult, IdempotencyRecord, IdempotencyStore } from '../../../src/store.ts'
import type { Member } from '../../../src/stores/redis/vote.ts'
import { intercepted as interceptedStore, until } from '../stores.ts'
import { type RedisServer, startAll, startRedis, stopAll } from './servers.ts'

export const TTL_MS = 3_600_000
/** Long, so that whoever waits for a lost member is seen to, also on a busy machine. */
export const MEMBER_TIMEOUT_MS = 2_000
/** For tests that must sit it out. */
export const SHORT_TIMEOUT_MS = 300
export const PAID: StoredResponse = { statusCode: 201, headers: {}, body: 'paid', replayable: true }

/** What stands between the quorum and one of its members. */
export type Between = (member: RedisStore, index: number) => Member

/** A member whose calls go through `intercept`. */
export function intercepted(
  member: RedisStore,
  intercept: (operation: keyof Member, perform: () => Promise<unknown>) => Promise<unknown>,
): Member {
  const giveBack = (claim: Claim, ttlMs: number) =>
    intercept('giveBack', () => member.giveBack(claim, ttlMs)) as Promise<boolean>
  return { ...interceptedStore(member, intercept), giveBack }
}

export const straight: Between = (member) => member

/** The servers of a suite, as they were before each of its tests: running, empty or not. */
export class Members {
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
  async client(t: TestContext, between = straight, memberTimeoutMs = MEMBER_TIMEOUT_MS): Promise<QuorumRedisStore> {
    const members = this.servers.map(({ url }) => new RedisStore({ url }))
    await Promise.all(members.map((member) => member.check()))
    const stores = members.map((member, index) => between(member, index))
    const store = new QuorumRedisStore({ stores, memberTimeoutMs })
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

export function newRequest(changes: Partial<ClaimRequest> = {}): ClaimRequest {
  const scopedKey = `idem#v1#quorum#POST:/payments#${randomUUID()}`
  const durations = { leaseMs: 60_000, ttlMs: TTL_MS }
  return { scopedKey, fingerprint: 'f', token: randomUUID(), ...durations, takeOverExpired: true, ...changes }
}

export function rivalOf(request: ClaimRequest): ClaimRequest {
  return { ...request, token: randomUUID() }
}

export function claimIn(result: ClaimResult): Claim {
  assert.ok(result.outcome === 'claimed', `not claimed: ${JSON.stringify(result)}`)
  return result.claim
}

export function recordIn(result: ClaimResult): IdempotencyRecord {
  assert.ok(result.outcome === 'exists', 'claimed a second time')
  return result.record
}

export function assertReplayed(record: IdempotencyRecord | undefined): void {
  assert.equal(record?.state, 'completed')
  assert.equal(record?.response?.body, 'paid')
}

/** What `work` comes to, and how long it takes. */
export async function timed<Result>(
  work: Promise<Result>,
): Promise<{ ms: number; result: PromiseSettledResult<Result> }> {
  const startedAt = performance.now()
  const [result] = await Promise.allSettled([work])
  return { ms: performance.now() - startedAt, result }
}

export function fulfilled<Result>(result: PromiseSettledResult<Result>): Result {
  if (result.status === 'rejected') throw result.reason
  return result.value
}

export function reasonOf(result: PromiseSettledResult<unknown>): string {
  return result.status === 'rejected' ? String(result.reason) : 'not rejected at all'
}

/** A failing way to one of the members, for calls by this client only. */
export function cutOff(...cut: readonly number[]): Between {
  return (member, index) => {
    if (!cut.includes(index)) return member
    return intercepted(member, async () => {
      throw new Error(`member ${index} is cut off`)
    })
  }
}

/** Claim, conflict, renewal, completion, replay, and all of it fast. */
export async function expectSteps(store: IdempotencyStore, request: ClaimRequest): Promise<void> {
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
