/** What can happen between a client and its store: nothing, a lost reply, delays. */

import { randomInt } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import type { IdempotencyStore } from '../store.ts'

/** The way from a client to its store. */
export interface Wire {
  readonly send: <Answer>(perform: () => Promise<Answer>) => Promise<Answer>
  /** How often a fault happened so far. */
  readonly faults: () => number
  /** Is each command executed twice? Then the answer is that of the second time. */
  readonly sendsTwice: boolean
}

/** Nothing happens. */
export function straight(): Wire {
  return { send: (perform) => perform(), faults: () => 0, sendsTwice: false }
}

/** Each command is executed, its reply is dropped, and it is executed again, as drivers do on a broken connection. */
export function repliesLost(): Wire {
  let lost = 0
  return {
    async send(perform) {
      await perform().catch(() => undefined)
      lost++
      return perform()
    },
    faults: () => lost,
    sendsTwice: true,
  }
}

/** Each call waits at random before it is made and before its reply arrives, so that calls overtake each other. */
export function unruly(): Wire {
  let sent = 0
  let newestAnswered = 0
  let overtaken = 0
  return {
    async send(perform) {
      const mine = ++sent
      await delay()
      const answer = await perform()
      await delay()
      if (mine < newestAnswered) overtaken++
      newestAnswered = Math.max(newestAnswered, mine)
      return answer
    },
    faults: () => overtaken,
    sendsTwice: false,
  }
}

async function delay(): Promise<void> {
  const kind = randomInt(4)
  if (kind === 0) return
  if (kind === 1) return sleep(randomInt(4))
  for (let turns = randomInt(1, 8); turns > 0; turns--) await undefined
}

/** The store as seen through a wire. */
export function through(wire: Wire, store: IdempotencyStore): IdempotencyStore {
  return {
    name: store.name,
    claim: (request) => wire.send(() => store.claim(request)),
    complete: (claim, response, ttlMs) => wire.send(() => store.complete(claim, response, ttlMs)),
    fail: (claim, ttlMs) => wire.send(() => store.fail(claim, ttlMs)),
    renew: (claim, leaseMs) => wire.send(() => store.renew(claim, leaseMs)),
    release: (claim) => wire.send(() => store.release(claim)),
    read: (scopedKey) => wire.send(() => store.read(scopedKey)),
  }
}
