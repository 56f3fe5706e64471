/**
 * Records in N independent Redis, without replication between them: what a majority has said, holds.
 *
 * The invariant. A claim counts when a majority of the members has given it to one token, at one fence. Any two
 * majorities have a member in common, a member gives a key to one token at a time, and takes it away only when the
 * lease has run out by its own clock, or the record has failed, or was released. So while a majority less a failed
 * minority (killed, silent) protects a claim, or has its completed record, nobody else finds a majority that is free:
 *
 * | the members say | the claim is |
 * |---|---|
 * | a majority: claimed, at one fence | claimed, once no completed record is known at that fence or above |
 * | a majority: a record of one and the same token | exists; completed as soon as one of these copies is |
 * | no majority, somewhere a completed record | exists: refused and replayed, whatever the others have lost |
 * | no majority, some ours, some of rivals | split: see below |
 * | fewer than a majority say anything | rejected: unknown |
 *
 * Whatever a claim has taken without getting a majority is given back by token, in the background.
 *
 * Split votes. The rival who holds the first member in the order of `stores` stays and asks again; the others give
 * theirs back, look on until it is worth asking again, and after `memberTimeoutMs` of this the claim is rejected. Whoever
 * has won goes on, in the background, to take the members that rivals have for a moment: only on more than a bare majority
 * does the claim survive the loss of a member's data. Before it ends the claim it waits until they have given them back,
 * for a quarter of `memberTimeoutMs` at most: so each end is on all members.
 *
 * Fences. The fence of a claim is the highest that one of its members gives; the others are raised to it before it counts,
 * by a renewal. So every later majority finds a member with this fence, and takes over with a higher one.
 *
 * A member takes no write from a claim whose fence is below the record's, whatever the token: a copy of an old claim that
 * comes late can take a key over once more, unknown to its owner, whom others have overtaken meanwhile. Only giving back a
 * claim under which nothing has run lowers a fence: to the one that the member had before, and only while it has this
 * very claim, by token and fence. What a member took without our hearing of it is looked up first.
 *
 * Read repair: none. A record does not tell how long it lives on, and a copy that outlives the others would be replayed
 * after its TTL. Instead the completion itself is brought to members that did not have the claim, as long as its TTL is
 * known: by its owner, in the background, also here for as long as a rival may have the member.
 */

import { assertDuration } from '../../errors.ts'
import type { StoredResponse } from '../../response.ts'
import type { Claim, ClaimRequest, ClaimResult, IdempotencyRecord, IdempotencyStore } from '../../store.ts'
import { checkOptions, isBoolean, isTimer, type Rule } from '../option-rules.ts'
import {
  type Answer,
  agreedRecord,
  completedRecord,
  majorityOf,
  newestRecord,
  noMajority,
  poll,
  valuesOf,
} from './majority.ts'
import { isSpent, QuorumClaim } from './quorum-claim.ts'
import { spread } from './spread.ts'

/** Options of a {@link QuorumRedisStore}. */
export interface QuorumRedisStoreOptions {
  /**
   * One `RedisStore` for each Redis, three or five of them, each on a machine of its own. All processes name the same
   * ones in the same order. Any other `IdempotencyStore` will do that keeps the laws, gives a record the fence of the
   * claim that it is written with, and refuses to write over a higher one.
   */
  readonly stores: readonly IdempotencyStore[]
  /**
   * How long one member is waited for where the others do not settle the answer, in ms; also how long rivals who split
   * the members among them try to settle it. Keep it below half of `storeTimeoutMs`.
   * @default 400
   */
  readonly memberTimeoutMs?: number
  /**
   * Refuse to start when a member cannot be reached or its settings are unsafe, instead of warning. A member's own
   * `strict` makes that member unusable in the eyes of the check, which is a warning here.
   * @default false
   */
  readonly strict?: boolean
}

const METHODS = ['claim', 'complete', 'fail', 'renew', 'release', 'read'] as const

const RULES: Readonly<Record<keyof QuorumRedisStoreOptions, Rule>> = {
  stores: {
    takes: `an array of stores with the methods ${METHODS.join(', ')}, one for each Redis, e.g. three`,
    accepts: (value) => Array.isArray(value) && value.length > 0 && value.every(isStore),
  },
  memberTimeoutMs: isTimer,
  strict: isBoolean,
}

function isStore(value: unknown): boolean {
  return METHODS.every((method) => typeof Object(value)[method] === 'function')
}

/**
 * Claims and completions on a majority of N independent Redis, so that any minority of them may be down, silent or
 * lost without a key being run twice or a replay being missed.
 *
 * ```ts
 * new QuorumRedisStore({ stores: [url1, url2, url3].map((url) => new RedisStore({ url })) })
 * ```
 *
 * It protects against: the loss of any minority of the members, in any phase; a member that answers late or never;
 * failovers that forget, because there are none.
 *
 * It does not protect against:
 * - a process that is paused past its lease while its handler runs: somebody else runs then too. Hand
 *   `request.idempotency.fence` to what the handler changes, and refuse lower fences there.
 * - jumps of a member's clock: a member whose clock leaps ahead ends its leases early and counts as failed. A majority
 *   of such members runs a key twice. Let clocks be slewed, not stepped.
 * - members that come back without their data: each of them counts as failed until the longest lease and TTL that it
 *   knew of are over. Use `appendonly yes` with `appendfsync always`, or leave such a member out for that long.
 * - more than that minority: a record that a bare majority took, because the others were down at the time, survives the
 *   silence of one of these, but not the loss of its data as well.
 */
export class QuorumRedisStore implements IdempotencyStore {
  readonly name = 'redis-quorum'
  readonly #members: readonly IdempotencyStore[]
  readonly #majority: number
  readonly #timeoutMs: number
  readonly #strict: boolean
  /** By token: claims that are won, but not known to be on all members yet. */
  readonly #taking = new Map<string, QuorumClaim>()
  readonly #background = new Set<Promise<unknown>>()

  /** @throws InvalidOptionError naming a wrong option */
  constructor(options: QuorumRedisStoreOptions) {
    const given = checkOptions('QuorumRedisStore', options, RULES, ['stores'])
    const { stores, memberTimeoutMs = 400, strict = false } = given
    this.#members = [...stores]
    this.#majority = majorityOf(stores.length)
    this.#timeoutMs = memberTimeoutMs
    this.#strict = strict
  }

  async claim(request: ClaimRequest): Promise<ClaimResult> {
    assertDuration('leaseMs', request.leaseMs)
    assertDuration('ttlMs', request.ttlMs)
    const attempt = new QuorumClaim(this.#members, request, this.#timeoutMs, (work) => this.#inBackground(work))
    const result = await attempt.run()
    if (result.outcome === 'claimed') this.#takeOthers(request.token, attempt)
    return result
  }

  async complete(claim: Claim, response: StoredResponse, ttlMs: number): Promise<boolean> {
    assertDuration('ttlMs', ttlMs)
    const startedAt = performance.now()
    // Others are still being taken: should no majority answer, the completion may find one when it is sent again.
    await this.#taking.get(claim.token)?.settled()
    const calls = this.#members.map((member) => started(() => member.complete(claim, response, ttlMs)))
    const isOwner = await this.#decide('complete', calls)
    if (!isOwner) return false
    const remainingMs = () => Math.floor(startedAt + ttlMs - performance.now())
    const isLate = () => performance.now() - startedAt >= 2 * this.#timeoutMs
    this.#members.forEach((member, index) => {
      this.#inBackground(spread(member, calls[index], { claim, response, remainingMs, isLate }))
    })
    return true
  }

  async fail(claim: Claim, ttlMs: number): Promise<boolean> {
    assertDuration('ttlMs', ttlMs)
    await this.#taking.get(claim.token)?.end()
    return this.#write('fail', (member) => member.fail(claim, ttlMs))
  }

  async renew(claim: Claim, leaseMs: number): Promise<boolean> {
    assertDuration('leaseMs', leaseMs)
    const startedAt = performance.now()
    const isOwner = await this.#write('renew', (member) => member.renew(claim, leaseMs))
    if (isOwner && isSpent(leaseMs, startedAt)) throw this.#unknown('renew, not within its lease', [])
    return isOwner
  }

  async release(claim: Claim): Promise<boolean> {
    await this.#taking.get(claim.token)?.end()
    return this.#write('release', (member) => member.release(claim))
  }

  /** From a majority; the others get as long again as it took, because each copy makes the answer more exact. */
  async read(scopedKey: string): Promise<IdempotencyRecord | undefined> {
    const patience = { timeoutMs: this.#timeoutMs, enough: this.#majority }
    const calls = this.#members.map((member) => started(() => member.read(scopedKey)))
    const answers = await this.#answersOf(calls, patience)
    const found = valuesOf(answers)
    if (found.length < this.#majority) throw this.#unknown('read', answers)
    const records = found.flatMap((record) => record ?? [])
    const known = agreedRecord(records, this.#majority) ?? completedRecord(records)
    if (known !== undefined || found.length - records.length >= this.#majority) return known
    return newestRecord(records)
  }

  /** The warnings of all members. A minority that cannot be reached is one of them; a majority refuses to start. */
  async check(): Promise<readonly string[]> {
    const checks = this.#members.map((member) => started(async () => (await member.check?.()) ?? []))
    const results = await Promise.allSettled(checks)
    const failed = results.filter(({ status }) => status === 'rejected')
    const warnings = [...this.#countWarnings(), ...results.flatMap((result, index) => this.#name(index, result))]
    const isRefused = this.#members.length - failed.length < this.#majority || (this.#strict && warnings.length > 0)
    if (isRefused) throw new Error(`QuorumRedisStore: ${warnings.join('; ')}`)
    return warnings
  }

  /** Waits for what is still being given back, no longer than `memberTimeoutMs`, and closes all members. */
  async close(): Promise<void> {
    for (const attempt of this.#taking.values()) this.#inBackground(attempt.end())
    await poll([Promise.all(this.#background)], { timeoutMs: this.#timeoutMs }, () => undefined)
    await Promise.allSettled(this.#members.map((member) => started(async () => member.close?.())))
  }

  #countWarnings(): string[] {
    const count = this.#members.length
    if (count >= 3 && count % 2 === 1) return []
    return [
      `a quorum of ${count} Redis survives no more losses than one of ${Math.max(1, count - 1)}; use three or five`,
    ]
  }

  #name(index: number, result: PromiseSettledResult<readonly string[]>): string[] {
    const warnings = result.status === 'fulfilled' ? result.value : [messageOf(result.reason)]
    return warnings.map((warning) => `Redis ${index + 1} of ${this.#members.length}: ${warning}`)
  }

  #write(operation: string, perform: (member: IdempotencyStore) => Promise<boolean>): Promise<boolean> {
    return this.#decide(
      operation,
      this.#members.map((member) => started(() => perform(member))),
    )
  }

  /** What a majority says; false also when so many say false that it can no longer say true. */
  async #decide(operation: string, calls: readonly Promise<boolean>[]): Promise<boolean> {
    const neededForFalse = calls.length - this.#majority + 1
    let heard: readonly Answer<boolean>[] = []
    const isOwner = await poll(calls, { timeoutMs: this.#timeoutMs }, (answers) => {
      heard = answers
      const said = valuesOf(answers)
      if (said.filter((isDone) => isDone).length >= this.#majority) return true
      return said.filter((isDone) => !isDone).length >= neededForFalse ? false : undefined
    })
    if (isOwner === undefined) throw this.#unknown(operation, heard)
    return isOwner
  }

  async #answersOf<Value>(
    calls: readonly Promise<Value>[],
    patience: { readonly timeoutMs: number; readonly enough: number },
  ): Promise<readonly Answer<Value>[]> {
    let heard: readonly Answer<Value>[] = []
    await poll(calls, patience, (answers) => {
      heard = answers
      return undefined
    })
    return heard
  }

  #takeOthers(token: string, attempt: QuorumClaim): void {
    this.#taking.set(token, attempt)
    this.#inBackground(attempt.takeOthers().finally(() => this.#taking.delete(token)))
  }

  #inBackground(work: Promise<unknown>): void {
    const running = work.catch(() => {}).finally(() => this.#background.delete(running))
    this.#background.add(running)
  }

  #unknown(operation: string, answers: readonly Answer<unknown>[]): Error {
    const errors = answers.flatMap((answer) => (answer !== undefined && 'error' in answer ? [answer.error] : []))
    return noMajority(operation, this.#members.length, errors)
  }
}

// A member that throws instead of rejecting must not take the others with it.
async function started<Result>(perform: () => Promise<Result>): Promise<Result> {
  return perform()
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error)
}
