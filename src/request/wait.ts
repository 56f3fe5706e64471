/** `onInProgress: { waitMs }`: duplicates that wait for the first request's answer. */

import { setTimeout as sleep } from 'node:timers/promises'
import type { IdempotencyRecord } from '../store.ts'

const FIRST_POLL_MS = 25
const SLOWEST_POLL_MS = 250

/**
 * Requests of this process that wait for a pending claim. One poll per scoped key serves all its waiters, and an
 * owner in this process wakes them at once.
 */
export class Waiters {
  readonly #read: (scopedKey: string) => Promise<IdempotencyRecord | undefined>
  readonly #waiting = new Map<string, Set<() => void>>()

  /** @param read must settle in bounded time */
  constructor(read: (scopedKey: string) => Promise<IdempotencyRecord | undefined>) {
    this.#read = read
  }

  /** Resolves when the key is worth claiming again, and after `forMs` at the latest. */
  wait(scopedKey: string, forMs: number): Promise<void> {
    return new Promise((resolve) => {
      const waiting = this.#waiting.get(scopedKey) ?? this.#open(scopedKey)
      const resume = () => {
        clearTimeout(timer)
        waiting.delete(resume)
        resolve()
      }
      const timer = setTimeout(resume, forMs)
      waiting.add(resume)
    })
  }

  /** The owner in this process is done: every waiter of the key looks again. */
  wake(scopedKey: string): void {
    if (this.#waiting.size === 0) return
    const waiting = this.#waiting.get(scopedKey)
    if (waiting === undefined) return
    this.#waiting.delete(scopedKey)
    for (const resume of waiting) resume()
  }

  #open(scopedKey: string): Set<() => void> {
    const waiting = new Set<() => void>()
    this.#waiting.set(scopedKey, waiting)
    void this.#poll(scopedKey, waiting)
    return waiting
  }

  async #poll(scopedKey: string, waiting: Set<() => void>): Promise<void> {
    let pauseMs = FIRST_POLL_MS
    do {
      await sleep(pauseMs, undefined, { ref: false })
      if (waiting.size > 0 && !(await this.#isPending(scopedKey))) break
      pauseMs = Math.min(pauseMs * 2, SLOWEST_POLL_MS)
    } while (waiting.size > 0)
    if (this.#waiting.get(scopedKey) === waiting) this.wake(scopedKey)
  }

  // A failed read changes nothing: each waiter's own claim will find out, when its time is up.
  async #isPending(scopedKey: string): Promise<boolean> {
    try {
      const record = await this.#read(scopedKey)
      return record?.state === 'pending' && record.leaseRemainingMs > 0
    } catch {
      return true
    }
  }
}
