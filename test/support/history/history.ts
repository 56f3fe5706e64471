/** What is written down of a run: each store operation, effect and answer, all on the clock of `performance.now()`. */

import type { StoredResponse } from '../../../src/response.ts'
import type { ClaimResult, IdempotencyRecord } from '../../../src/store.ts'

/** One call of a store, as its caller saw it. */
interface Call {
  readonly key: string
  readonly app: number
  readonly token: string
  readonly fence: number
  /** Sent at, in ms. */
  readonly t0: number
  /** Answered at, in ms. Infinity: unknown; it may have happened at any time since, or may happen yet. */
  t1: number
  /** May its driver have sent it more than once? Then copies may arrive at any later time, too. */
  isResent: boolean
}

export interface ClaimCall extends Call {
  readonly op: 'claim'
  readonly fingerprint: string
  readonly leaseMs: number
  out?: ClaimResult
}

export interface WriteCall extends Call {
  readonly op: 'complete' | 'fail' | 'renew' | 'release'
  /** Of `complete`. */
  readonly response?: StoredResponse
  /** Of `renew`. */
  readonly leaseMs?: number
  out?: boolean
}

export interface ReadCall extends Call {
  readonly op: 'read'
  out?: IdempotencyRecord | undefined
}

export type Operation = ClaimCall | WriteCall | ReadCall

/** What handlers that fail say. */
export const FAILURE = 'the handler failed'

/** A handler has started: what it is there for is done. */
export interface Effect {
  readonly id: number
  readonly key: string
  readonly app: number
  readonly fence: number
  /** What the request asked for. */
  readonly amount: number
  readonly at: number
}

/** What a client got. */
export interface Answer {
  readonly key: string
  readonly app: number
  readonly amount: number
  readonly t0: number
  readonly t1: number
  /** 0: the client went away, or the connection did. */
  readonly status: number
  readonly isReplay: boolean
  readonly body: string
}

/** All that happened, or what happened to one key. */
export interface History {
  readonly operations: Operation[]
  readonly effects: Effect[]
  readonly answers: Answer[]
}

export function emptyHistory(): History {
  return { operations: [], effects: [], answers: [] }
}

/** One history for each key: no key has anything to do with another. */
export function byKey({ operations, effects, answers }: History): Map<string, History> {
  const histories = new Map<string, History>()
  const of = (key: string) => {
    const history = histories.get(key) ?? emptyHistory()
    histories.set(key, history)
    return history
  }
  for (const operation of operations) of(operation.key).operations.push(operation)
  for (const effect of effects) of(effect.key).effects.push(effect)
  for (const answer of answers) of(answer.key).answers.push(answer)
  return histories
}

/** Is it known what came of it? */
export function isKnown({ t1 }: Operation): boolean {
  return t1 !== Number.POSITIVE_INFINITY
}

/** May the call have had its effect, or may a copy of it have had? */
export function mayHaveWritten(call: Operation): boolean {
  return call.out === true || !isKnown(call) || call.isResent
}
