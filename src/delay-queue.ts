/** One timer for everything that waits the same length of time: store deadlines, lease renewals. */

/**
 * Hands each entry to `onDue` a fixed delay after it was added, unless it was removed before.
 *
 * All entries wait equally long, so insertion order is due order: adding and removing are O(1), and one timer
 * serves the whole queue, however many requests are under way.
 */
export class DelayQueue<Entry> {
  readonly #delayMs: number
  readonly #onDue: (entry: Entry) => void
  readonly #keepsAlive: boolean
  readonly #dueAt = new Map<Entry, number>()
  #timer: NodeJS.Timeout | undefined

  /**
   * @param delayMs at most 2^31 - 1, as for any Node timer
   * @param keepsAlive whether the process must not end while an entry waits; an empty queue never holds it open
   */
  constructor(delayMs: number, keepsAlive: boolean, onDue: (entry: Entry) => void) {
    this.#delayMs = delayMs
    this.#keepsAlive = keepsAlive
    this.#onDue = onDue
  }

  /** Adds an entry that is not in the queue. */
  add(entry: Entry): void {
    this.#dueAt.set(entry, performance.now() + this.#delayMs)
    if (this.#timer === undefined) this.#arm(this.#delayMs)
    else if (this.#keepsAlive && this.#dueAt.size === 1) this.#timer.ref()
  }

  remove(entry: Entry): void {
    this.#dueAt.delete(entry)
    if (this.#dueAt.size === 0) this.#timer?.unref()
  }

  #arm(delayMs: number): void {
    this.#timer = setTimeout(() => this.#fire(), delayMs)
    if (!this.#keepsAlive) this.#timer.unref()
  }

  #fire(): void {
    this.#timer = undefined
    const now = performance.now()
    for (const [entry, dueAt] of this.#dueAt) {
      if (dueAt > now) return this.#arm(Math.max(1, dueAt - now))
      this.#dueAt.delete(entry)
      this.#onDue(entry)
    }
  }
}
