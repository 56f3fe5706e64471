import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { describe, it } from 'node:test'
import { fileURLToPath } from 'node:url'
import { MemoryStore } from 'fastify-idempotency'
import { storeConformance } from 'fastify-idempotency/testing'
import { TinyStore } from '../examples/tiny-store.ts'
import { BROKEN_STORES, MapStore } from './support/broken-stores.ts'

describe('storeConformance', { concurrency: 4 }, () => {
  describe('the memory store', () => {
    let now = 0
    storeConformance(() => new MemoryStore({ now: () => now }), {
      sharedState: false,
      // It hands out what it was given, for speed: the plugin, its one caller, changes neither.
      keepsReferences: true,
      advance: (ms) => {
        now += ms
      },
    })
  })

  describe('a store with every capability', () => {
    const store = new MapStore()
    storeConformance(() => store, {
      sharedState: true,
      advance: (ms) => {
        store.now += ms
      },
      clockMarginMs: 5,
      roundTrips: async () => store.trips,
      writeUnknownVersion: async (scopedKey) => store.plantUnknownVersion(scopedKey),
    })
  })

  describe('the example store, in real time', () => {
    storeConformance(() => new TinyStore(), { sharedState: false })
  })

  // Beside the others: the example's tests mostly wait.
  describe('the suite tells broken stores from a correct one', { concurrency: 2 }, () => {
    it('it passes a correct one, in a child process like the others', async () => {
      const { code, failed, passed } = await runSuite('')
      assert.deepEqual(failed, [])
      assert.equal(code, 0)
      assert.ok(passed > 200, `${passed} tests ran`)
    })

    for (const [name, { seenBy }] of Object.entries(BROKEN_STORES)) {
      it(`it fails a store because: ${name}`, async () => {
        const { code, failed, passed } = await runSuite(name)
        assert.equal(code, 1)
        assert.ok(passed > 0, 'the suite did not run')
        for (const law of seenBy) {
          assert.ok(
            failed.some((test) => test.includes(law)),
            `no failing test is named "${law}", only:\n${failed.join('\n')}`,
          )
        }
      })
    }
  })
})

interface Verdict {
  readonly code: number | null
  /** Names of failing tests and suites. */
  readonly failed: readonly string[]
  readonly passed: number
}

function runSuite(brokenStore: string): Promise<Verdict> {
  const fixture = fileURLToPath(new URL('support/conformance-of-one.ts', import.meta.url))
  // Without these two the child would report to the runner of this file, in its format, and to its coverage.
  const { NODE_TEST_CONTEXT: _context, NODE_V8_COVERAGE: _coverage, ...env } = process.env
  const options = { env: { ...env, BROKEN_STORE: brokenStore }, timeout: 60_000, maxBuffer: 64 * 1_048_576 }
  return new Promise((resolve) => {
    const child = execFile(
      process.execPath,
      ['--import', 'tsx', '--test-reporter=tap', fixture],
      options,
      (_error, stdout) => {
        const lines = stdout.split('\n').map((line) => line.trim())
        const failed = lines.filter((line) => line.startsWith('not ok '))
        const passed = lines.filter((line) => line.startsWith('ok ')).length
        resolve({ code: child.exitCode, failed, passed })
      },
    )
  })
}
