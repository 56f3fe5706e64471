/** The history of one key, for people. */

import type { StoredResponse } from '../../../src/response.ts'
import type { IdempotencyRecord } from '../../../src/store.ts'
import type { History, Operation } from './history.ts'
import type { Entry } from './rules.ts'

/** One line for each entry in the order of their beginnings, times in ms since the first; `>>` marks `because`. */
export function printed({ operations, effects, answers }: History, because: readonly Entry[]): string {
  const entries: Entry[] = [...operations, ...effects, ...answers]
  entries.sort((a, b) => startOf(a) - startOf(b))
  const origin = startOf(entries[0] as Entry)
  return entries.map((entry) => `${because.includes(entry) ? '>>' : '  '} ${line(entry, origin)}`).join('\n')
}

function startOf(entry: Entry): number {
  return 'at' in entry ? entry.at : entry.t0
}

function line(entry: Entry, origin: number): string {
  const since = (instant: number) => (Number.isFinite(instant) ? (instant - origin).toFixed(1) : '?').padStart(7)
  const where = `app ${entry.app}`
  if ('at' in entry) {
    return `${since(entry.at)}          ${where} EFFECT ${entry.id} at fence ${entry.fence}, amount ${entry.amount}`
  }
  const span = `${since(entry.t0)} ${since(entry.t1)}  ${where}`
  if ('op' in entry) return `${span} ${called(entry)}${entry.isResent ? ' (sent again)' : ''}`
  const { status, amount, isReplay, body } = entry
  const said = /FST_IDEMPOTENCY_\w+/.exec(body)?.[0] ?? body.slice(0, 100)
  return `${span} HTTP amount ${amount} -> ${status || 'gone'}${isReplay ? ' replayed' : ''} ${said}`
}

function called(call: Operation): string {
  const token = call.token.slice(0, 6)
  const unknown = call.t1 === Number.POSITIVE_INFINITY ? 'unknown' : undefined
  switch (call.op) {
    case 'read':
      return `read -> ${unknown ?? shown(call.out)}`
    case 'claim':
      return `claim ${token} -> ${unknown ?? outcomeOf(call)}`
    default:
      return `${call.op} ${token} fence ${call.fence} ${textOf(call.response)}-> ${unknown ?? call.out}`
  }
}

function outcomeOf({ out }: Operation & { op: 'claim' }): string {
  if (out?.outcome === 'claimed') return `CLAIMED fence ${out.claim.fence}, taken over: ${out.takenOver}`
  return `exists: ${shown(out?.record)}`
}

function shown(record: IdempotencyRecord | undefined): string {
  if (record === undefined) return 'absent'
  const { state, token, fence, leaseRemainingMs, response } = record
  return `${state} ${token.slice(0, 6)} fence ${fence}, lease ${Math.round(leaseRemainingMs)} ${textOf(response)}`
}

function textOf(response: StoredResponse | undefined): string {
  return response === undefined ? '' : `${response.statusCode} ${String(response.body).slice(0, 80)} `
}
