/**
 * Whole apps on real stores, under faults. Every call of a store, every effect and every answer is written down, and
 * has to be explicable. `HISTORY_SEED` makes the choices of a run that failed again; its timing is its own.
 */

import assert from 'node:assert/strict'
import { randomInt } from 'node:crypto'
import { describe, it, type TestContext } from 'node:test'
import { MemoryStore } from '../src/index.ts'
import type { Bed } from './support/history/bed.ts'
import { judge, report } from './support/history/checker.ts'
import { run } from './support/history/drive.ts'
import { dynamoDBBed } from './support/history/dynamodb.ts'
import type { History } from './support/history/history.ts'
import { MUTANTS } from './support/history/mutants.ts'
import { networkBed } from './support/history/network.ts'
import { redisBed } from './support/history/redis.ts'
import { wonClaims } from './support/history/times.ts'

const seed = Number(process.env['HISTORY_SEED'] ?? randomInt(2 ** 31))
/** At most: rare faults may take a few. */
const ROUNDS = 12

describe(`three apps and many clients on a store under faults (seed ${seed}): one effect per lease, one answer`, () => {
  it('memory, over networks that lose, repeat and hold up', (t) => provesRight(t, networkBed(new MemoryStore(), seed)))

  it('Redis, with lost and late replies, killed connections and silence', async (t) => provesRight(t, await redisBed()))

  it('DynamoDB, with lost replies, throttling, failures and silence', async (t) =>
    provesRight(t, await dynamoDBBed(), { forMs: 9_000, clients: 24 }))
})

async function provesRight(t: TestContext, bed: Bed, { forMs = 6_000, clients = 40 } = {}): Promise<void> {
  t.after(() => bed.stop())
  const history = await run(bed, { seed, forMs, clients })
  const judgement = judge(history)
  t.diagnostic(
    JSON.stringify({ ...sizeOf(history), keys: judgement.keys, undecided: judgement.undecided, ...bed.faults() }),
  )
  assert.equal(judgement.faults.length, 0, `seed ${seed}\n${report(judgement)}`)
  // A key with very many calls is judged by the rules alone.
  assert.ok(
    judgement.undecided <= judgement.keys / 50,
    `${judgement.undecided} keys have too many calls for the search`,
  )
  for (const [what, count] of Object.entries({ ...sizeOf(history), ...bed.faults() }))
    assert.ok(count > 0, `no ${what}`)
}

/** What must have happened for a run to prove something. */
function sizeOf(history: History) {
  const { operations, effects, answers } = history
  return {
    answers: answers.length,
    replays: answers.filter(({ isReplay }) => isReplay).length,
    effects: effects.length,
    calls: operations.length,
    'unknown calls': operations.filter(({ t1 }) => t1 === Number.POSITIVE_INFINITY).length,
    'calls sent again': operations.filter(({ isResent }) => isResent).length,
    takeovers: wonClaims(history).filter(({ out }) => out.takenOver === 'expired').length,
  }
}

describe(`the checker finds (seed ${seed})`, { concurrency: 4 }, () => {
  for (const [name, { create, seenAs }] of Object.entries(MUTANTS)) {
    it(name, async () => {
      const seen = new Set<string>()
      for (let round = 0; round < ROUNDS && !seen.has(seenAs); round++) {
        const history = await run(networkBed(create(), seed + round), { seed: seed + round, forMs: 1_500, clients: 10 })
        for (const { rule } of judge(history).faults) seen.add(rule)
      }
      assert.ok(seen.has(seenAs), `"${seenAs}" was not among ${JSON.stringify([...seen])}`)
    })
  }
})
