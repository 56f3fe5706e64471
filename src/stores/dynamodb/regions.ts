/** Home regions: each key belongs to one region, whichever node its request came to. */

import { hash } from 'node:crypto'
import type { DynamoDBStoreClient } from './options.ts'

/** Regions with a table each. */
export interface DynamoDBRegions {
  /** The region that this process runs in; one of `clients`. */
  readonly self: string
  /** A client for each region, by name. The names must be the same on all nodes: they decide where a key belongs. */
  readonly clients: Readonly<Record<string, DynamoDBStoreClient>>
}

/** Digits of a score: 48 bits, which a number holds exactly. */
const SCORE_DIGITS = 12

/**
 * The region that a scoped key belongs to, by rendezvous hashing: the one whose name makes the highest SHA-256 with the
 * key. Every node finds the same one without asking, and a region that comes or goes moves only the keys of its own.
 * @param names at least one, in any order
 */
export function homeRegion(names: readonly string[], scopedKey: string): string {
  let home = ''
  let highest = -1
  for (const name of names) {
    const score = Number.parseInt(hash('sha256', `${name}\n${scopedKey}`).slice(0, SCORE_DIGITS), 16)
    if (score < highest || (score === highest && name > home)) continue
    home = name
    highest = score
  }
  return home
}
