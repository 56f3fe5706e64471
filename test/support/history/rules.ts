/** Cheap rules: each finds the first entries of one key's history that cannot be, whatever else happened. */

import type { StoredResponse } from '../../../src/response.ts'
import type { IdempotencyRecord } from '../../../src/store.ts'
import type { Answer, Effect, History, Operation, WriteCall } from './history.ts'
import { claimCalls, heldAtMostUntil, isBefore, latest, mayFollow, type Won, wonClaims, writes } from './times.ts'

export type Entry = Operation | Effect | Answer

/** The entries that break it. */
export type Rule = (history: History) => readonly Entry[] | undefined

/** By how much an answer "pending" may be out of date, for margins against clock skew. In ms. */
const SKEW_MS = 60

/** An answer that shows a record, or that there is none. */
export interface Sight {
  readonly call: Operation
  readonly record: IdempotencyRecord | undefined
}

export const STORE_RULES: Readonly<Record<string, Rule>> = {
  'two owners at the same time': (history) => {
    const claims = wonClaims(history)
    return pairOf(claims, (a, b) => !mayFollow(a, b, history) && !mayFollow(b, a, history))
  },

  'a fence was given twice, or did not grow': (history) => {
    const releases = writes(history, 'release').filter((call) => call.out !== false || call.isResent)
    // Only a first claim is ever forgotten.
    const mayStartAnew = (a: Won, b: Won) =>
      fenceOf(a) === 1 && releases.some((call) => call.t0 <= b.t1 && latest(call) >= a.t0)
    return pairOf(wonClaims(history), (a, b) => {
      const [first, second] = a.t0 <= b.t0 ? [a, b] : [b, a]
      const isWrong = isBefore(first, second) ? fenceOf(second) <= fenceOf(first) : fenceOf(second) === fenceOf(first)
      return isWrong && !mayStartAnew(first, second) && (isBefore(first, second) || !mayStartAnew(second, first))
    })
  },

  'a completed key was claimed': (history) =>
    afterCompletion(wonClaims(history), history, (claim, completion) => claim.token !== completion.token),

  'a completed record was gone, or another': (history) => {
    const seen = new Map(sights(history).map((sight) => [sight.call, sight.record]))
    return afterCompletion([...seen.keys()], history, (call, { token }) => {
      const record = seen.get(call)
      return record?.state !== 'completed' || record.token !== token
    })
  },

  'a key was completed by two owners': (history) => pairOf(completions(history), (a, b) => a.token !== b.token),

  'a write was accepted of an owner whom another had overtaken': (history) => {
    const claims = wonClaims(history)
    for (const write of writes(history, 'complete', 'fail', 'renew', 'release')) {
      const isOvertaker = (claim: Won) => claim.token !== write.token && fenceOf(claim) > Math.max(1, write.fence)
      const overtaker = claims.find((claim) => isOvertaker(claim) && isBefore(claim, write))
      if (write.out === true && overtaker !== undefined) return [overtaker, write]
    }
    return undefined
  },

  'a claim was told that it lost to itself': (history) =>
    entry(sights(history).find(({ call, record }) => isPending(record) && record.token === call.token)?.call),

  'in progress, though nobody could hold the key': (history) => {
    for (const { call, record } of sights(history)) {
      const because = isPending(record) ? notHeld(call, record, history) : undefined
      if (because !== undefined) return [...because, call]
    }
    return undefined
  },

  'a record shows another response than was completed': (history) => {
    for (const { call, record } of sights(history)) {
      if (record?.state !== 'completed') continue
      const completes = writes(history, 'complete').filter(({ token, t0 }) => token === record.token && t0 <= call.t1)
      if (!completes.some(({ response }) => bytesOf(response) === bytesOf(record.response))) return [...completes, call]
    }
    return undefined
  },
}

/** What was seen of the record, by those who did not get the key and those who only looked. */
export function sights(history: History): Sight[] {
  return history.operations.flatMap((call): Sight[] => {
    if (call.op === 'read' && call.t1 < Number.POSITIVE_INFINITY) return [{ call, record: call.out }]
    return call.op === 'claim' && call.out?.outcome === 'exists' ? [{ call, record: call.out.record }] : []
  })
}

/** A response as one string, equal only for equal bytes. */
export function bytesOf(response: StoredResponse | undefined): string {
  if (response === undefined) return 'none'
  const { statusCode, headers, body, replayable } = response
  const kind = Buffer.isBuffer(body) ? 'bytes' : typeof body
  return JSON.stringify([statusCode, headers, replayable, kind, Buffer.from(body ?? '').toString('base64')])
}

export function completions(history: History): WriteCall[] {
  return writes(history, 'complete').filter(({ out }) => out === true)
}

// Who must have had it, and why he cannot have it any more.
function notHeld(call: Operation, { token }: IdempotencyRecord, history: History): readonly Entry[] | undefined {
  const claim = claimCalls(history).find((other) => other.token === token)
  if (claim === undefined || claim.t0 > call.t1) return []
  if (latest(claim) === Number.POSITIVE_INFINITY) return undefined
  if (claim.out?.outcome === 'exists') return [claim]
  const ends = writes(history, 'complete', 'fail', 'release').filter((end) => end.token === token && end.out === true)
  const end = ends.find((other) => isBefore(other, call))
  if (end !== undefined) return [claim, end]
  const isOver = heldAtMostUntil(token, history) + SKEW_MS < call.t0
  const mayTakeOver = call.op === 'claim' && call.fingerprint === claim.fingerprint
  return isOver && mayTakeOver ? [claim] : undefined
}

function afterCompletion<Call extends Operation>(
  calls: readonly Call[],
  history: History,
  isWrong: (call: Call, completion: WriteCall) => boolean,
): readonly Entry[] | undefined {
  for (const completion of completions(history)) {
    const call = calls.find((other) => isBefore(completion, other) && isWrong(other, completion))
    if (call !== undefined) return [completion, call]
  }
  return undefined
}

function isPending(record: IdempotencyRecord | undefined): record is IdempotencyRecord {
  return record?.state === 'pending'
}

function fenceOf({ out }: Won): number {
  return out.claim.fence
}

function entry<Item>(found: Item | undefined): readonly Item[] | undefined {
  return found && [found]
}

function pairOf<Item extends { readonly token: string }>(
  items: readonly Item[],
  isWrong: (a: Item, b: Item) => boolean,
): readonly [Item, Item] | undefined {
  for (const [index, a] of items.entries()) {
    const b = items.slice(index + 1).find((other) => other.token !== a.token && isWrong(a, other))
    if (b !== undefined) return [a, b]
  }
  return undefined
}
