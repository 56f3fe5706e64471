/** What the times of calls say about who could have held a key. */

import { type ClaimCall, type History, isKnown, mayHaveWritten, type Operation, type WriteCall } from './history.ts'

/** A claim that was answered `claimed`. */
export type Won = ClaimCall & { readonly out: Extract<ClaimCall['out'], { outcome: 'claimed' }> }

/** Clocks of servers count whole milliseconds. */
const TOLERANCE_MS = 3

export function claimCalls({ operations }: History): ClaimCall[] {
  return operations.filter((call) => call.op === 'claim')
}

export function wonClaims(history: History): Won[] {
  return claimCalls(history).filter((call): call is Won => call.out?.outcome === 'claimed')
}

export function writes({ operations }: History, ...ops: WriteCall['op'][]): WriteCall[] {
  return operations.filter((call): call is WriteCall => (ops as string[]).includes(call.op))
}

/** Had this call, with all its effects, come and gone before that one was sent? */
export function isBefore(call: Operation, other: Operation): boolean {
  return call.t1 <= other.t0
}

/** When the last copy of a call may arrive. */
export function latest(call: Operation): number {
  return isKnown(call) && !call.isResent ? call.t1 : Number.POSITIVE_INFINITY
}

/** Could `second` have been claimed after `first`, because that had ended or its lease was over? */
export function mayFollow(first: Won, second: Won, history: History): boolean {
  if (isBefore(second, first)) return false
  const isOver = second.t1 >= heldUntil(first, second.t0, history) - TOLERANCE_MS
  return isOver || mayHaveEnded(first.token, second.t1, history)
}

function mayHaveEnded(token: string, by: number, history: History): boolean {
  const ends = writes(history, 'complete', 'fail', 'release')
  return ends.some((end) => end.token === token && mayHaveWritten(end) && end.t0 <= by)
}

/** Until when at least a claim was protected, by what had been answered at `by`. */
function heldUntil(claim: Won, by: number, history: History): number {
  const renewals = writes(history, 'renew').filter((call) => call.token === claim.token && call.out && call.t1 <= by)
  return Math.max(...[claim, ...renewals].map((call) => call.t0 + (call.leaseMs ?? 0)))
}

/** Until when at most a token may have protected its claim: infinitely, if a copy of some call may still come. */
export function heldAtMostUntil(token: string, history: History): number {
  const calls = history.operations.filter(
    (call) => call.token === token && (call.op === 'claim' || call.op === 'renew'),
  )
  const protecting = calls.filter((call) => call.op === 'claim' || mayHaveWritten(call))
  return Math.max(...protecting.map((call) => latest(call) + ('leaseMs' in call ? (call.leaseMs ?? 0) : 0)))
}
