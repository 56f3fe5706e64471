/** Processes and clocks: one of many is claimed, and two nodes whose clocks differ never both hold a lease. */

import assert from 'node:assert/strict'
import { type ChildProcess, spawn } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { describe, it, type TestContext } from 'node:test'
import { fileURLToPath } from 'node:url'
import type { DynamoDBStore, DynamoDBStoreOptions } from '../src/stores/dynamodb/index.ts'
import { programsOf } from './support/apt.ts'
import { testBed } from './support/dynamodb/bed.ts'

const bed = testBed()

const WORKER = fileURLToPath(new URL('./support/dynamodb/worker.ts', import.meta.url))

/** A process that claims the key when it is told to. */
class Claimer {
  /** Its clock, when it was ready. */
  readonly ready: Promise<number>
  readonly #child: ChildProcess
  readonly #lines: string[] = []
  readonly #waiting: ((line: string) => void)[] = []

  constructor(t: TestContext, command: readonly string[], scopedKey: string, settings: object = {}) {
    const [program = '', ...args] = [...command, process.execPath, '--import', 'tsx', WORKER]
    const child = spawn(program, [...args, bed.server.endpoint, bed.tableName, scopedKey, JSON.stringify(settings)], {
      stdio: ['pipe', 'pipe', 'ignore'],
      env: { ...process.env, NODE_V8_COVERAGE: undefined },
    })
    this.#child = child
    t.after(() => void child.kill('SIGKILL'))
    let text = ''
    child.stdout?.on('data', (chunk: Buffer) => {
      const lines = (text + chunk).split('\n')
      text = lines.pop() ?? ''
      for (const line of lines) this.#heard(line)
    })
    child.once('close', () => this.#heard(''))
    this.ready = this.#line().then((line) => Number(line.split(' ')[1]))
  }

  /** Tells it to claim; what came of it. */
  async claim(): Promise<string> {
    this.#child.stdin?.write('\n')
    const line = await this.#line()
    assert.notEqual(line, '', 'a process ended without an answer')
    return (JSON.parse(line) as { outcome: string }).outcome
  }

  #heard(line: string): void {
    const waiting = this.#waiting.shift()
    if (waiting === undefined) this.#lines.push(line)
    else waiting(line)
  }

  #line(): Promise<string> {
    const line = this.#lines.shift()
    if (line !== undefined) return Promise.resolve(line)
    return new Promise((resolve) => this.#waiting.push(resolve))
  }
}

it('of 64 processes that claim one key at once one is claimed, and 63 are not', { timeout: 180_000 }, async (t) => {
  const key = randomUUID()
  const claimers = Array.from({ length: 64 }, () => new Claimer(t, [], key))
  await Promise.all(claimers.map(({ ready }) => ready))
  const outcomes = await Promise.all(claimers.map((claimer) => claimer.claim()))
  assert.equal(outcomes.filter((outcome) => outcome === 'claimed').length, 1)
  assert.equal(outcomes.filter((outcome) => outcome === 'exists').length, 63)
})

describe('clocks that differ', () => {
  const START = 1_700_000_000_000
  const LEASE_MS = 10_000
  const request = (scopedKey: string) => ({
    scopedKey,
    token: randomUUID() as string,
    fingerprint: 'f',
    leaseMs: LEASE_MS,
    ttlMs: 3_600_000,
    takeOverExpired: true,
  })

  /** A node whose clock is off by so much, at `atMs` after START by the true time. */
  const node = (atMs: number, offByMs: number, options: Partial<DynamoDBStoreOptions> = {}) =>
    bed.store({ now: () => START + atMs + offByMs, ...options })

  const outcomeOf = async (store: DynamoDBStore, key: string) => (await store.claim(request(key))).outcome

  for (const offByMs of [5_000, -5_000]) {
    it(`by ${offByMs} ms, within clockSkewMs: nobody takes over while the owner's own clock says that it holds the lease`, async () => {
      const options = { clockSkewMs: 5_000 }
      const key = randomUUID()
      assert.equal(await outcomeOf(node(0, 0, options), key), 'claimed')
      for (const atMs of [0, 4_999, 5_000, 5_001, 9_000, 9_999, LEASE_MS]) {
        assert.equal(await outcomeOf(node(atMs, offByMs, options), key), 'exists', `after ${atMs} ms`)
      }
      const overMs = LEASE_MS + 5_000 - offByMs
      assert.equal(await outcomeOf(node(overMs, offByMs, options), key), 'exists', 'at the end itself')
      assert.equal(await outcomeOf(node(overMs + 1, offByMs, options), key), 'claimed')
    })
  }

  it('within clockSkewMs: a record that is kept no longer than its lease is not taken for expired either', async () => {
    const options = { clockSkewMs: 5_000 }
    const key = randomUUID()
    await node(0, 0, options).claim({ ...request(key), ttlMs: 1 })
    assert.equal(await outcomeOf(node(LEASE_MS - 1, 5_000, options), key), 'exists')
    const renewed = randomUUID()
    const owner = await node(0, 0, options).claim({ ...request(renewed), ttlMs: 1 })
    assert.ok(owner.outcome === 'claimed')
    assert.equal(await node(9_000, 0, options).renew(owner.claim, LEASE_MS), true)
    assert.equal(await outcomeOf(node(18_999, 5_000, options), renewed), 'exists')
  })

  it('by more than clockSkewMs: a takeover comes early by what is not covered, as documented', async () => {
    const options = { clockSkewMs: 1_000 }
    const key = randomUUID()
    await node(0, 0, options).claim(request(key))
    assert.equal(await outcomeOf(node(6_000, 5_000, options), key), 'exists')
    assert.equal(await outcomeOf(node(6_001, 5_000, options), key), 'claimed')
  })

  it('not at all, with clockSkewMs: 0: the lease is kept to the millisecond, wherever in a second it began', async () => {
    for (const startMs of [0, 1, 13, 500, 987, 999]) {
      const key = randomUUID()
      await node(startMs, 0, { clockSkewMs: 0 }).claim(request(key))
      assert.equal(await outcomeOf(node(startMs + LEASE_MS - 1, 0, { clockSkewMs: 0 }), key), 'exists')
      assert.equal(await outcomeOf(node(startMs + LEASE_MS, 0, { clockSkewMs: 0 }), key), 'exists')
      assert.equal(await outcomeOf(node(startMs + LEASE_MS + 1, 0, { clockSkewMs: 0 }), key), 'claimed')
    }
  })

  it('the default covers one second', async () => {
    const key = randomUUID()
    await node(0, 0).claim(request(key))
    assert.equal(await outcomeOf(node(LEASE_MS, 1_000), key), 'exists')
    assert.equal(await outcomeOf(node(LEASE_MS + 1, 1_000), key), 'claimed')
  })

  it('a process whose clock is 5 s ahead (faketime) takes over only where the margin does not cover it', {
    timeout: 60_000,
  }, async (t) => {
    const { faketime } = await programsOf({
      name: 'faketime',
      programs: ['faketime'],
      howToGet: 'This test runs a process with another clock and needs faketime: `apt-get install faketime`.',
    })
    const ahead = [faketime, '-f', '+5s']
    const [covered, uncovered] = [randomUUID() as string, randomUUID() as string]
    const settings = { leaseMs: 4_000 }
    const claimers = {
      covered: new Claimer(t, ahead, covered, { ...settings, clockSkewMs: 5_000 }),
      uncovered: new Claimer(t, ahead, uncovered, { ...settings, clockSkewMs: 0 }),
    }
    const clocks = await Promise.all(Object.values(claimers).map(({ ready }) => ready))
    for (const clock of clocks) assert.ok(clock - Date.now() > 3_000, 'its clock is not ahead')
    const store = bed.store({ clockSkewMs: 5_000 })
    const startedAt = Date.now()
    for (const key of [covered, uncovered]) await store.claim({ ...request(key), ...settings })
    const outcomes = { covered: await claimers.covered.claim(), uncovered: await claimers.uncovered.claim() }
    assert.ok(Date.now() - startedAt < settings.leaseMs, 'too slow: the lease was over')
    assert.deepEqual(outcomes, { covered: 'exists', uncovered: 'claimed' })
  })
})
