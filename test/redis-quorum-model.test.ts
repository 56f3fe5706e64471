/** Thousands of schedules of a quorum in virtual time: one owner, no late writes, fences grow. */

import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import type { Weakness } from './support/redis/network-model.ts'
import { type History, runSchedule, type Trouble } from './support/redis/quorum-model.ts'

async function runAll(trouble: Trouble, schedules: number, members: number, weakness?: Weakness) {
  const totals: Record<string, number> = {}
  const faults: string[] = []
  for (let seed = 1; seed <= schedules; seed++) {
    const history: History = await runSchedule(seed, trouble, members, weakness)
    for (const [name, count] of Object.entries(history.counts)) totals[name] = (totals[name] ?? 0) + count
    faults.push(...history.faults.map((fault) => `seed ${seed}, ${fault}`))
  }
  return { totals, faults }
}

const RUNS: readonly [trouble: Trouble, what: string, schedules: number, members: number, counts: string[]][] = [
  ['network', 'requests and replies are lost, late and out of order, three members', 900, 3, []],
  ['network', 'requests and replies are lost, late and out of order, five members', 200, 5, []],
  ['member', 'one of three members comes back without its data, again and again', 900, 3, ['wiped']],
]

const WEAKNESSES: readonly Weakness[] = [
  'writes by token alone',
  'forgets what is given back',
  'releases without a fence',
]

describe('a quorum in all kinds of trouble', () => {
  for (const [trouble, what, schedules, members, counts] of RUNS) {
    it(`${what}: no key has two owners, and what was completed is replayed`, async (t) => {
      const { totals, faults } = await runAll(trouble, schedules, members)
      t.diagnostic(JSON.stringify(totals))
      assert.deepEqual(faults.slice(0, 10), [], `${faults.length} faults`)
      for (const name of ['claimed', 'takenOver', 'completed', 'replayed', ...counts]) {
        assert.ok((totals[name] ?? 0) > schedules / 4, `${name}: ${totals[name]} times, which shows little`)
      }
    })
  }

  for (const weakness of WEAKNESSES) {
    it(`the same schedules show it when a member ${weakness}`, async () => {
      const { faults } = await runAll('network', 900, 3, weakness)
      assert.ok(faults.length >= 10, `only ${faults.length} faults in 900 schedules`)
    })
  }
})
