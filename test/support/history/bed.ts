/** What a run stands on: a store as each of several apps reaches it, and what befalls it. */

import type { Chance } from './chance.ts'
import type { Link } from './recorder.ts'

/** How many apps share a store. */
export const APPS = 3

export interface Bed {
  readonly links: readonly Link[]
  /** One fault, or a pause between two. */
  disturb(chance: Chance): Promise<void>
  /** Undoes what the last fault has left. */
  calm(): void
  /** Faults that happened so far, by name: a run without them proves nothing. */
  faults(): Readonly<Record<string, number>>
  stop(): Promise<void>
}

/** Faults in turn, so that each has its share of a short run. */
export function inTurn(...faults: readonly ((chance: Chance) => unknown)[]): Bed['disturb'] {
  let turn = 0
  return async (chance) => {
    await faults[turn++ % faults.length]?.(chance)
  }
}
