/** Time that passes as fast as it can be computed: for models, which thereby also are the same each time they run. */

import crypto from 'node:crypto'
import { syncBuiltinESMExports } from 'node:module'
import timersPromises from 'node:timers/promises'

/** Pseudo-random numbers from 0 to 1, the same ones for the same seed (mulberry32). */
export function randomOf(seed: number): () => number {
  let state = seed
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let mixed = Math.imul(state ^ (state >>> 15), state | 1)
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
}

/** Also what `setTimeout` returns. */
class Due {
  readonly at: number
  readonly order: number
  readonly run: () => void
  isAwaited = true

  constructor(at: number, order: number, run: () => void) {
    this.at = at
    this.order = order
    this.run = run
  }

  unref(): this {
    this.isAwaited = false
    return this
  }
}

const nextRealTurn = (() => {
  const { setImmediate } = globalThis
  return () => new Promise<void>((resolve) => setImmediate(resolve))
})()

/** In place of timers, `performance.now` and `randomInt`, between `install` and `uninstall`. */
export class VirtualTime {
  now = 0
  readonly #random: () => number
  #due: Due[] = []
  #order = 0
  #uninstall = () => {}

  constructor(random: () => number) {
    this.#random = random
  }

  /** Calls `run` after so many ms. */
  after(ms: number, run: () => void): Due {
    const due = new Due(this.now + Math.max(0, ms), this.#order++, run)
    this.#due.push(due)
    return due
  }

  sleep(ms: number): Promise<void> {
    return new Promise((resolve) => void this.after(ms, resolve))
  }

  /** Lets time pass until nothing is due any more but what is not waited for. */
  async run(): Promise<void> {
    for (;;) {
      await nextRealTurn()
      const first = this.#due.reduce<Due | undefined>(earlier, undefined)
      if (first === undefined || !this.#due.some(({ isAwaited }) => isAwaited)) return
      this.#due.splice(this.#due.indexOf(first), 1)
      this.now = first.at
      first.run()
    }
  }

  install(): void {
    const before = { setTimeout, clearTimeout, setImmediate }
    const realNow = performance.now
    const [realSleep, realRandomInt] = [timersPromises.setTimeout, crypto.randomInt]
    const fakes = {
      setTimeout: (run: (...args: unknown[]) => void, ms = 0, ...args: unknown[]) => this.after(ms, () => run(...args)),
      setImmediate: (run: (...args: unknown[]) => void, ...args: unknown[]) => this.after(0, () => run(...args)),
      clearTimeout: (due: Due | undefined) => {
        this.#due = this.#due.filter((each) => each !== due)
      },
    }
    const set = (globals: object, now: () => number, sleep: unknown, randomInt: unknown) => {
      Object.assign(globalThis, globals)
      performance.now = now
      Object.assign(timersPromises, { setTimeout: sleep })
      Object.assign(crypto, { randomInt })
      syncBuiltinESMExports()
    }
    const fakeRandomInt = (below: number) => Math.floor(this.#random() * below)
    set(
      fakes,
      () => this.now,
      (ms: number) => this.sleep(ms),
      fakeRandomInt,
    )
    this.#uninstall = () => set(before, realNow.bind(performance), realSleep, realRandomInt)
  }

  uninstall(): void {
    this.#uninstall()
  }
}

function earlier(one: Due | undefined, other: Due): Due {
  if (one === undefined || other.at < one.at) return other
  return other.at === one.at && other.order < one.order ? other : one
}
