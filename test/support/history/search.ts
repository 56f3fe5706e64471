/**
 * Wing and Gong's search: is there an order of a key's calls, each at some instant between its start and its end, in
 * which a plain record would have given the very same answers? Whether a lease was over is left open here; the rules
 * judge that by the clock.
 */

import type { IdempotencyRecord } from '../../../src/store.ts'
import { type ClaimCall, type History, isKnown, type Operation, type WriteCall } from './history.ts'
import { bytesOf } from './rules.ts'

/** The record, as plain as can be. */
interface State {
  readonly state: 'none' | IdempotencyRecord['state']
  readonly token: string
  readonly fence: number
  readonly fingerprint: string
  readonly bytes: string
}

interface Step {
  readonly next: State
  readonly answer: string
}

/** `explained`: there is an order; `undecided`: not found out, within the bound. Else the longest order there is. */
export type Verdict = 'explained' | 'undecided' | { readonly explained: number; readonly stuck: readonly Operation[] }

const NONE: State = { state: 'none', token: '', fence: 0, fingerprint: '', bytes: 'none' }
const MAY_REPEAT = { complete: 'completed', fail: 'failed', renew: 'pending', release: 'failed' } as const
const BOUND = 50_000

export function search({ operations }: History): Verdict {
  const known = operations.filter(isKnown).sort((a, b) => a.t0 - b.t0)
  // These may have happened at any time since, more than once, or never.
  const ghosts = operations.filter((call) => call.op !== 'read' && (!isKnown(call) || call.isResent))
  // One beyond what anybody has seen, for a ghost that took over and that nobody came after.
  const highest = Math.max(0, ...known.map(fenceSeen)) + 1
  const seen = new Set<string>()
  const open: [done: bigint, State][] = [[0n, NONE]]
  let best: Exclude<Verdict, string> = { explained: -1, stuck: [] }
  for (let place = open.pop(); place !== undefined; place = open.pop()) {
    const [done, state] = place
    const key = `${done} ${Object.values(state).join(' ')}`
    if (seen.has(key)) continue
    seen.add(key)
    if (seen.size > BOUND) return 'undecided'
    const left = known.filter((_, index) => (done & (1n << BigInt(index))) === 0n)
    if (left.length === 0) return 'explained'
    const now = Math.min(...left.map(({ t1 }) => t1))
    if (known.length - left.length > best.explained) {
      best = { explained: known.length - left.length, stuck: left.filter(({ t0 }) => t0 <= now) }
    }
    for (const ghost of ghosts) {
      if (ghost.t0 > now) continue
      for (const { next } of steps(state, ghost)) if (next !== state && next.fence <= highest) open.push([done, next])
    }
    for (const call of left) {
      if (call.t0 > now) break
      const answer = answerOf(call)
      const after = done | (1n << BigInt(known.indexOf(call)))
      for (const step of steps(state, call)) if (step.answer === answer) open.push([after, step.next])
    }
  }
  return best
}

function steps(state: State, call: Operation): readonly Step[] {
  switch (call.op) {
    case 'read':
      return [{ next: state, answer: seenAs(state) }]
    case 'claim':
      return claimSteps(state, call)
    default:
      return [writeStep(state, call)]
  }
}

function claimSteps(state: State, { token, fingerprint }: ClaimCall): readonly Step[] {
  const taken = (why: string): Step => {
    const fence = state.fence + 1
    const next: State = { state: 'pending', token, fence, fingerprint, bytes: 'none' }
    return { next, answer: `claimed ${fence} ${why}` }
  }
  const exists: Step = { next: state, answer: `exists ${seenAs(state)}` }
  if (state.state === 'none') return [taken('no')]
  if (state.token === token && state.state === 'pending') return [{ next: state, answer: `claimed ${state.fence} no` }]
  if (state.token === token || state.fingerprint !== fingerprint || state.state === 'completed') return [exists]
  return state.state === 'failed' ? [taken('failed')] : [taken('expired'), exists]
}

function writeStep(state: State, { op, token, fence, response }: WriteCall): Step {
  const isOwner = state.token === token && state.fence <= Math.max(op === 'release' ? 1 : 0, fence)
  if (!isOwner || (state.state !== 'pending' && state.state !== MAY_REPEAT[op])) return { next: state, answer: 'false' }
  switch (op) {
    case 'complete':
      return { next: { ...state, state: 'completed', bytes: bytesOf(response) }, answer: 'true' }
    case 'fail':
      return { next: { ...state, state: 'failed' }, answer: 'true' }
    case 'renew':
      return { next: state, answer: 'true' }
    case 'release':
      return { next: NONE, answer: 'true' }
  }
}

function answerOf(call: Operation): string {
  if (call.op === 'read') return recordAs(call.out)
  if (call.op !== 'claim') return String(call.out)
  if (call.out?.outcome === 'claimed') return `claimed ${call.out.claim.fence} ${call.out.takenOver}`
  return `exists ${recordAs(call.out?.record)}`
}

function seenAs({ state, token, fence, bytes }: State): string {
  return state === 'none' ? 'none' : `${state} ${token} ${fence} ${bytes}`
}

function recordAs(record: IdempotencyRecord | undefined): string {
  if (record === undefined) return 'none'
  const { state, token, fence, response } = record
  return `${state} ${token} ${fence} ${bytesOf(state === 'completed' ? response : undefined)}`
}

function fenceSeen(call: Operation): number {
  if (call.op === 'read') return call.out?.fence ?? 0
  if (call.op !== 'claim' || call.out === undefined) return call.fence
  return call.out.outcome === 'claimed' ? call.out.claim.fence : call.out.record.fence
}
