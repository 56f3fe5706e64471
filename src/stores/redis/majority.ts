/** What independent members say together: waiting for enough of them, and counting. */

import type { IdempotencyRecord, RecordState } from '../../store.ts'

/** What one member said; undefined: nothing yet. */
export type Answer<Value> = { readonly value: Value } | { readonly error: unknown } | undefined

/** How long the members are waited for. */
export interface Patience {
  readonly timeoutMs: number
  /** When so many have answered, the others get as long again as these took. Absent: they get all of `timeoutMs`. */
  readonly enough?: number
}

/** Less is not waited for members behind the others: their sockets may be read in the next turn. */
const LEAST_GRACE_MS = 20

/** The smallest number of members of which any two groups have one in common. */
export function majorityOf(members: number): number {
  return Math.floor(members / 2) + 1
}

/**
 * Collects answers until `verdict`, which is asked after each one, returns something.
 * @returns undefined when all have answered, or the time is over, without a verdict
 */
export function poll<Value, Verdict>(
  calls: readonly Promise<Value>[],
  { timeoutMs, enough }: Patience,
  verdict: (answers: readonly Answer<Value>[]) => Verdict | undefined,
): Promise<Verdict | undefined> {
  const startedAt = performance.now()
  const answers: Answer<Value>[] = calls.map(() => undefined)
  return new Promise((resolve) => {
    let timer: NodeJS.Timeout | undefined
    const end = (result: Verdict | undefined) => {
      clearTimeout(timer)
      timer = undefined
      resolve(result)
    }
    // After a turn of the event loop: in one that was held up, the time is over before the answers are read.
    const endAfter = (ms: number) => setTimeout(() => setImmediate(end, undefined), ms)
    timer = endAfter(timeoutMs)
    const note = (index: number, answer: Answer<Value>) => {
      if (timer === undefined) return
      answers[index] = answer
      const result = verdict(answers)
      if (result !== undefined || answers.every((each) => each !== undefined)) return end(result)
      if (valuesOf(answers).length !== enough || !('value' in (answer as object))) return
      clearTimeout(timer)
      timer = endAfter(graceOf(performance.now() - startedAt, timeoutMs))
    }
    calls.forEach((call, index) => {
      call.then(
        (value) => note(index, { value }),
        (error: unknown) => note(index, { error }),
      )
    })
  })
}

function graceOf(elapsedMs: number, timeoutMs: number): number {
  return Math.max(0, Math.min(Math.max(elapsedMs, LEAST_GRACE_MS), timeoutMs - elapsedMs))
}

export function valuesOf<Value>(answers: readonly Answer<Value>[]): Value[] {
  return answers.flatMap((answer) => (answer !== undefined && 'value' in answer ? [answer.value] : []))
}

/** The highest number that `majority` of them reach; when there are fewer of them, the lowest. */
function reachedBy(majority: number, numbers: readonly number[]): number {
  const descending = numbers.toSorted((a, b) => b - a)
  return descending[Math.min(majority, descending.length) - 1] ?? 0
}

/** The record of the one claim that a majority of members knows, whatever each of them knows of its end. */
export function agreedRecord(records: readonly IdempotencyRecord[], majority: number): IdempotencyRecord | undefined {
  const copies = records.map(({ token }) => records.filter((record) => record.token === token))
  const agreed = copies.find(({ length }) => length >= majority)
  return agreed && merged(agreed, majority)
}

/** A completed record that fewer than a majority have told of; of several, the newest. */
export function completedRecord(records: readonly IdempotencyRecord[]): IdempotencyRecord | undefined {
  return newestFirst(records).find(({ state }) => state === 'completed')
}

/** The record with the highest fence. */
export function newestRecord(records: readonly IdempotencyRecord[]): IdempotencyRecord | undefined {
  return newestFirst(records)[0]
}

function newestFirst(records: readonly IdempotencyRecord[]): IdempotencyRecord[] {
  return records.toSorted((a, b) => b.fence - a.fence)
}

const PROGRESS: Readonly<Record<RecordState, number>> = { pending: 0, failed: 1, completed: 2 }

// Copies of one claim differ while its end is being written: the one that is furthest says what happened.
function merged(copies: readonly IdempotencyRecord[], majority: number): IdempotencyRecord {
  const [furthest] = copies.toSorted((a, b) => PROGRESS[b.state] - PROGRESS[a.state])
  const { state } = furthest as IdempotencyRecord
  const fences = copies.map(({ fence }) => fence)
  const leases = copies.map(({ leaseRemainingMs }) => leaseRemainingMs)
  return {
    ...(furthest as IdempotencyRecord),
    fence: reachedBy(majority, fences),
    leaseRemainingMs: state === 'pending' ? reachedBy(majority, leases) : 0,
  }
}

/** Why nothing can be known: too few members have answered, or their answers do not add up. */
export function noMajority(what: string, members: number, errors: readonly unknown[]): Error {
  const reasons = errors.map((error) => (error instanceof Error ? error.message : String(error)))
  const because = reasons.length === 0 ? '' : `: ${reasons.join('; ')}`
  const needed = majorityOf(members)
  return new AggregateError(errors, `${what}: no majority (${needed} of ${members} Redis) says what happened${because}`)
}
