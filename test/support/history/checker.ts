/** Judges a history key by key: the cheap rules first, then the search. */

import { APP_RULES } from './app-rules.ts'
import { byKey, type History } from './history.ts'
import { printed } from './print.ts'
import { type Entry, STORE_RULES } from './rules.ts'
import { search } from './search.ts'

/** Something that cannot have happened with a store and a plugin that keep their promises. */
export interface Fault {
  readonly rule: string
  readonly key: string
  /** The history of the key, with marks at the entries that cannot be. */
  readonly story: string
}

export interface Judgement {
  readonly faults: readonly Fault[]
  /** Keys whose calls the search could not put in order within its bound. */
  readonly undecided: number
  readonly keys: number
}

const RULES = Object.entries({ ...STORE_RULES, ...APP_RULES })

/** At most one fault for each rule and key. */
export function judge(history: History): Judgement {
  const histories = [...byKey(history)]
  const faults: Fault[] = []
  let undecided = 0
  for (const [key, ofKey] of histories) {
    const add = (rule: string, because: readonly Entry[]) => faults.push({ rule, key, story: printed(ofKey, because) })
    for (const [rule, find] of RULES) {
      const because = find(ofKey)
      if (because !== undefined) add(rule, because)
    }
    const verdict = search(ofKey)
    if (verdict === 'undecided') undecided++
    else if (verdict !== 'explained') add('no order of the calls explains their answers', verdict.stuck)
  }
  return { faults, undecided, keys: histories.length }
}

/** All of a judgement's faults in few lines, and the story of the first. */
export function report({ faults }: Judgement): string {
  const counts = new Map<string, number>()
  for (const { rule } of faults) counts.set(rule, (counts.get(rule) ?? 0) + 1)
  const shortest = [...faults].sort((a, b) => a.story.length - b.story.length)[0]
  const lines = [...counts].map(([rule, count]) => `${count} x ${rule}`)
  return [...lines, shortest && `${shortest.rule}, key ${shortest.key}:\n${shortest.story}`].join('\n')
}
