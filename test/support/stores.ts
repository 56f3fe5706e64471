/** Stores that can be watched and made to misbehave, around a real one. */

import { MemoryStore } from '../../src/index.ts'
import type { IdempotencyStore } from '../../src/store.ts'

type Operation = 'claim' | 'complete' | 'fail' | 'renew' | 'release' | 'read'
type Interceptor = (operation: Operation, perform: () => Promise<unknown>) => Promise<unknown>

/** Sends every call of a store through `intercept`, which may count, delay, repeat or break it. */
export function intercepted(inner: IdempotencyStore, intercept: Interceptor): IdempotencyStore {
  const through =
    (operation: Operation) =>
    (...args: unknown[]): Promise<never> =>
      intercept(operation, () =>
        (inner[operation] as (...args: unknown[]) => Promise<unknown>)(...args),
      ) as Promise<never>
  return {
    name: inner.name,
    claim: through('claim'),
    complete: through('complete'),
    fail: through('fail'),
    renew: through('renew'),
    release: through('release'),
    read: through('read'),
  }
}

/** A memory store that remembers the names of the calls made to it, in order. */
export function watchedStore(inner: IdempotencyStore = new MemoryStore()) {
  const calls: Operation[] = []
  const store = intercepted(inner, (operation, perform) => {
    calls.push(operation)
    return perform()
  })
  return { store, calls, inner }
}

/** A memory store whose chosen operations fail as long as they are in `broken`. */
export function breakableStore(inner: IdempotencyStore = new MemoryStore()) {
  const broken = new Set<Operation>()
  const calls: Operation[] = []
  const store = intercepted(inner, async (operation, perform) => {
    calls.push(operation)
    if (broken.has(operation))
      throw Object.assign(new Error(`${operation}: connection refused`), { code: 'ECONNREFUSED' })
    return perform()
  })
  return { store, broken, calls, inner }
}

/** A promise and its resolver: the test decides when a handler or a store goes on. */
export function gate<Value = void>() {
  let open!: (value: Value) => void
  const opened = new Promise<Value>((resolve) => {
    open = resolve
  })
  return { open, opened }
}

/** How often a condition is asked for, and for how long, in ms. */
const QUICK = { every: 2, within: 5_000 }

/** Resolves as soon as `condition` holds; rejects, naming what was waited for, when it does not in time (5 s). */
export async function until(
  what: string,
  condition: () => boolean | Promise<boolean>,
  { every, within } = QUICK,
): Promise<void> {
  const deadline = Date.now() + within
  while (!(await condition())) {
    if (Date.now() > deadline) throw new Error(`waited in vain for: ${what}`)
    await new Promise((resolve) => setTimeout(resolve, every))
  }
}
