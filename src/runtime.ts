/** What all covered routes of one plugin instance share: the store, and everything that outlives a request. */

import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import { type Delayed, DelayQueue } from './delay-queue.ts'
import { StoreTimeoutError } from './errors.ts'
import type { Events } from './events.ts'
import type { OwnedClaim } from './request/owned-claim.ts'
import { Waiters } from './request/wait.ts'
import type { IdempotencyStore } from './store.ts'

/** A store call that somebody waits for. */
class Deadline implements Delayed {
  previous: this | undefined
  next: this | undefined
  dueAt = 0
  readonly reject: (error: Error) => void

  constructor(reject: (error: Error) => void) {
    this.reject = reject
  }
}

/** Store calls that may fail this often before they are given up; with the delays below, for a few minutes. */
const ATTEMPTS = 20
const FIRST_DELAY_MS = 100
const CLOSE_WAIT_MS = 5_000
const WAITERS_READ_MS = 1_000

export class Runtime {
  readonly store: IdempotencyStore
  readonly events: Events
  readonly waiters: Waiters
  readonly #deadlines = new Map<number, DelayQueue<Deadline>>()
  readonly #renewals = new Map<number, DelayQueue<OwnedClaim>>()
  readonly #background = new Set<Promise<unknown>>()
  readonly #closing = new AbortController()
  readonly #warnings = new Set<string>()

  constructor(store: IdempotencyStore, events: Events) {
    this.store = store
    this.events = events
    this.waiters = new Waiters((scopedKey) => this.within(WAITERS_READ_MS, store.read(scopedKey), performance.now()))
  }

  /** The renewals of all running claims with this lease: each falls due at a third of it. */
  renewals(leaseMs: number): DelayQueue<OwnedClaim> {
    return queueOf(this.#renewals, leaseMs, newRenewals)
  }

  /**
   * Waits for a store call that was sent at `sentAt` (on the `performance.now()` clock), no longer than `timeoutMs`.
   * @throws StoreTimeoutError when it is not over by then: it may still happen
   */
  within<Result>(timeoutMs: number, call: Promise<Result>, sentAt: number): Promise<Result> {
    const deadlines = queueOf(this.#deadlines, timeoutMs, newDeadlines)
    return new Promise((resolve, reject) => {
      const deadline = new Deadline(reject)
      const succeed = (result: Result) => {
        deadlines.remove(deadline)
        resolve(result)
      }
      const fail = (error: unknown) => {
        deadlines.remove(deadline)
        reject(error)
      }
      deadlines.add(deadline, sentAt)
      call.then(succeed, fail)
    })
  }

  /** Warns of something that requests, not settings, have shown; once, so that logs stay readable. */
  warnOnce(log: FastifyBaseLogger, warning: string): void {
    if (this.#warnings.has(warning)) return
    this.#warnings.add(warning)
    log.warn(`idempotency: ${warning}`)
  }

  /** Starts what no request waits for, and remembers it so that closing the app can wait. Its failure is its own. */
  inBackground(perform: () => Promise<unknown>): void {
    const running = started(perform)
      .catch(() => {})
      .finally(() => this.#background.delete(running))
    this.#background.add(running)
  }

  /**
   * Repeats a store call with growing delays until it resolves; while the app closes, only once more.
   * @param maxDelayMs the longest pause between two attempts
   * @throws what the last attempt threw
   */
  async retry<Result>(perform: () => Promise<Result>, maxDelayMs: number): Promise<Result> {
    for (let attempt = 0; ; attempt++) {
      await this.#pause(Math.min(FIRST_DELAY_MS * 2 ** attempt, maxDelayMs))
      try {
        return await perform()
      } catch (error) {
        if (attempt === ATTEMPTS - 1 || this.#closing.signal.aborted) throw error
      }
    }
  }

  async #pause(delayMs: number): Promise<void> {
    await sleep(delayMs, undefined, { ref: false, signal: this.#closing.signal }).catch(() => {})
  }

  /** Lets what is under way finish, within bounds, then closes the store. */
  async close(): Promise<void> {
    this.#closing.abort()
    await Promise.race([Promise.all(this.#background), sleep(CLOSE_WAIT_MS, undefined, { ref: false })])
    await this.store.close?.()
  }
}

function newDeadlines(timeoutMs: number): DelayQueue<Deadline> {
  return new DelayQueue(timeoutMs, true, ({ reject }) => reject(new StoreTimeoutError(timeoutMs)))
}

function newRenewals(leaseMs: number): DelayQueue<OwnedClaim> {
  return new DelayQueue(Math.ceil(leaseMs / 3), false, (claim) => claim.renew())
}

function queueOf<Entry extends Delayed>(
  queues: Map<number, DelayQueue<Entry>>,
  delayMs: number,
  make: (delayMs: number) => DelayQueue<Entry>,
): DelayQueue<Entry> {
  const existing = queues.get(delayMs)
  if (existing !== undefined) return existing
  const queue = make(delayMs)
  queues.set(delayMs, queue)
  return queue
}

// A store that throws instead of rejecting must not take the request with it.
function started<Result>(perform: () => Promise<Result>): Promise<Result> {
  try {
    return perform()
  } catch (error) {
    return Promise.reject(error)
  }
}
