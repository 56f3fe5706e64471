/** One timer for everything that waits the same length of time: store deadlines, lease renewals. */

import { type Linked, LinkedList } from './linked-list.ts'

/** What can wait in a {@link DelayQueue}; the queue alone sets these. */
export interface Delayed extends Linked {
  /** When its delay is over, on the `performance.now()` clock; 0 while it is in no queue. */
  dueAt: number
}

/** An empty queue lets the process end after this long: switching its timer with every entry would cost more than all else. */
const REST_AFTER_MS = 10

/**
 * Hands each entry to `onDue` a fixed delay after it was added, unless it was removed before.
 *
 * All entries wait equally long, so insertion order is due order: one timer serves the whole queue, however many
 * requests are under way.
 */
export class DelayQueue<Entry extends Delayed> {
  readonly #delayMs: number
  readonly #onDue: (entry: Entry) => void
  readonly #keepsAlive: boolean
  readonly #entries = new LinkedList<Entry>()
  #timer: NodeJS.Timeout | undefined
  #restTimer: NodeJS.Timeout | undefined
  #isResting = false

  /**
   * @param delayMs at most 2^31 - 1, as for any Node timer
   * @param keepsAlive whether the process must not end while an entry waits; an empty queue soon lets it go
   */
  constructor(delayMs: number, keepsAlive: boolean, onDue: (entry: Entry) => void) {
    this.#delayMs = delayMs
    this.#keepsAlive = keepsAlive
    this.#onDue = onDue
  }

  /**
   * Adds an entry that is in no queue.
   * @param now on the `performance.now()` clock
   */
  add(entry: Entry, now: number): void {
    entry.dueAt = now + this.#delayMs
    this.#entries.append(entry)
    if (this.#timer === undefined) this.#arm(this.#delayMs)
    else if (this.#isResting) this.#rest(false)
  }

  /** Removes an entry of this queue; one that has fallen due is no longer in it. */
  remove(entry: Entry): void {
    if (entry.dueAt === 0) return
    entry.dueAt = 0
    this.#entries.remove(entry)
    if (!this.#keepsAlive || this.#entries.first !== undefined || this.#restTimer !== undefined) return
    this.#restTimer = setTimeout(() => {
      this.#restTimer = undefined
      if (this.#entries.first === undefined) this.#rest(true)
    }, REST_AFTER_MS)
  }

  #rest(isResting: boolean): void {
    this.#isResting = isResting
    if (isResting) this.#timer?.unref()
    else this.#timer?.ref()
  }

  #arm(delayMs: number): void {
    this.#timer = setTimeout(() => this.#fire(), delayMs)
    if (this.#keepsAlive) this.#isResting = false
    else this.#timer.unref()
  }

  #fire(): void {
    this.#timer = undefined
    const now = performance.now()
    for (let entry = this.#entries.first; entry !== undefined; entry = this.#entries.first) {
      if (entry.dueAt > now) return this.#arm(Math.max(1, entry.dueAt - now))
      this.remove(entry)
      this.#onDue(entry)
    }
  }
}
