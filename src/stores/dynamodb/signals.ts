/** Signals that end calls whose time is over. */

import { setMaxListeners } from 'node:events'
import { LONGEST_TIMER_MS } from '../option-rules.ts'

const SLOTS_PER_TIMEOUT = 10

/**
 * One `AbortSignal` for all calls that begin in the same tenth of the timeout. One for each call cost 20 µs, nearly all
 * of it in the garbage collector.
 */
export class SharedSignals {
  readonly #timeoutMs: number
  readonly #slotMs: number
  #signal: AbortSignal | undefined
  #slotEndsAt = 0

  constructor(timeoutMs: number) {
    this.#timeoutMs = timeoutMs
    this.#slotMs = timeoutMs / SLOTS_PER_TIMEOUT
  }

  /**
   * The signal of calls that begin at `now` (on the `performance.now()` clock). It is aborted when their time is over,
   * or up to a tenth of the timeout later.
   */
  at(now: number): AbortSignal {
    if (this.#signal === undefined || now >= this.#slotEndsAt) {
      this.#signal = this.#open()
      this.#slotEndsAt = now + this.#slotMs
    }
    return this.#signal
  }

  #open(): AbortSignal {
    const controller = new AbortController()
    setMaxListeners(0, controller.signal) // as many as there are calls under way
    const afterMs = Math.min(this.#timeoutMs + this.#slotMs, LONGEST_TIMER_MS)
    setTimeout(() => controller.abort(), afterMs).unref()
    return controller.signal
  }
}
