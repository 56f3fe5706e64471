import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { describe, it } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { promisify } from 'node:util'
import fc from 'fast-check'
import {
  type Claim,
  type ClaimRequest,
  MemoryStore,
  type MemoryStoreOptions,
  type StoredResponse,
} from '../src/index.ts'
import { Comparison } from './support/memory-model.ts'
import { anyStep, contestedStep } from './support/memory-steps.ts'

const TWO_TO_31 = 2 ** 31

/** A memory store on a clock that the test moves. */
function createStore(options: MemoryStoreOptions = {}) {
  const clock = { now: 0 }
  return { clock, store: new MemoryStore({ now: () => clock.now, ...options }) }
}

let tokens = 0
function requestFor(scopedKey: string, changes: Partial<ClaimRequest> = {}): ClaimRequest {
  const token = `token-${++tokens}`
  return { scopedKey, fingerprint: 'f', token, leaseMs: 1_000, ttlMs: 60_000, takeOverExpired: true, ...changes }
}

async function claim(store: MemoryStore, scopedKey: string, changes: Partial<ClaimRequest> = {}): Promise<Claim> {
  const result = await store.claim(requestFor(scopedKey, changes))
  assert.ok(result.outcome === 'claimed', `${scopedKey} is taken`)
  return result.claim
}

function responseOf(bytes: number): StoredResponse {
  return { statusCode: 200, headers: {}, body: Buffer.alloc(bytes), replayable: true }
}

const isFull = { code: 'FST_IDEMPOTENCY_STORE_FULL', statusCode: 503 }
const isTooLarge = { code: 'FST_IDEMPOTENCY_RESPONSE_TOO_LARGE' }

describe('bounds of the memory store', () => {
  for (const [name, value] of [
    ['maxRecords', 0],
    ['maxRecords', 1.5],
    ['maxRecords', Number.NaN],
    ['maxBytes', -1],
    ['maxBytes', Number.POSITIVE_INFINITY],
  ] as const) {
    it(`${name}: ${value} is an error that names the option`, () => {
      assert.throws(() => new MemoryStore({ [name]: value }), { name: 'TypeError', message: new RegExp(`"${name}"`) })
    })
  }

  it('full of live records it refuses the next claim, counts that, and forgets nothing', async () => {
    const { store } = createStore({ maxRecords: 2 })
    const pending = await claim(store, 'pending')
    const completed = await claim(store, 'completed')
    await store.complete(completed, responseOf(10), 60_000)
    const before = store.usage
    await assert.rejects(store.claim(requestFor('new')), isFull)
    await assert.rejects(store.claim(requestFor('new')), isFull)
    assert.deepEqual(store.usage, { ...before, refused: 2 })
    assert.equal((await store.read('pending'))?.token, pending.token)
    assert.equal((await store.read('completed'))?.state, 'completed')
    assert.equal(await store.read('new'), undefined)
  })

  it('full of live records it still serves the keys that it has: replay, takeover, renewal', async () => {
    const { store, clock } = createStore({ maxRecords: 2 })
    await store.complete(await claim(store, 'completed'), responseOf(10), 60_000)
    await claim(store, 'lapsed', { leaseMs: 100 })
    clock.now = 200
    assert.equal((await store.claim(requestFor('completed'))).outcome, 'exists')
    const owner = await claim(store, 'lapsed')
    assert.equal(owner.fence, 2)
    assert.equal(await store.renew(owner, 5_000), true)
  })

  it('full, it drops what has expired to make room', async () => {
    const { store, clock } = createStore({ maxRecords: 2 })
    await claim(store, 'short', { ttlMs: 1_000 })
    await claim(store, 'long')
    clock.now = 1_000
    await claim(store, 'new')
    assert.equal(store.usage.records, 2)
    assert.equal(store.usage.refused, 0)
    assert.equal((await store.read('long'))?.state, 'pending')
  })

  it('an expired key makes room for itself', async () => {
    const { store, clock } = createStore({ maxRecords: 1 })
    await claim(store, 'key', { ttlMs: 1_000 })
    clock.now = 1_000
    assert.equal((await claim(store, 'key')).fence, 1)
  })

  it('what expired behind a record of the same second has made room when that second is over', async () => {
    const { store, clock } = createStore({ maxRecords: 2 })
    await claim(store, 'late in the second', { leaseMs: 100, ttlMs: 900 })
    await claim(store, 'early in the second', { leaseMs: 100, ttlMs: 500 })
    clock.now = 1_000
    await claim(store, 'a')
    await claim(store, 'b')
    assert.deepEqual({ records: store.usage.records, refused: store.usage.refused }, { records: 2, refused: 0 })
  })

  it('a released record makes room', async () => {
    const { store } = createStore({ maxRecords: 1 })
    await store.release(await claim(store, 'a'))
    await claim(store, 'b')
    assert.equal(store.usage.records, 1)
  })

  it('maxBytes refuses claims too, and counts them', async () => {
    const { store } = createStore({ maxBytes: 1_400 })
    await claim(store, 'a')
    await claim(store, 'b')
    await assert.rejects(store.claim(requestFor('c')), isFull)
    await assert.rejects(store.claim(requestFor('k'.repeat(2_000))), isFull)
    assert.equal(store.usage.refused, 2)
    assert.ok(store.usage.bytes <= 1_400)
  })

  it('a response that does not fit is refused, counted, and leaves the claim pending', async () => {
    const { store } = createStore({ maxBytes: 2_000 })
    const owner = await claim(store, 'key')
    const before = store.usage
    await assert.rejects(store.complete(owner, responseOf(2_000), 60_000), isTooLarge)
    assert.deepEqual(store.usage, { ...before, refused: 1 })
    assert.equal((await store.read('key'))?.state, 'pending')
    assert.equal(await store.complete(owner, { ...responseOf(0), body: null, replayable: false }, 60_000), true)
  })

  it('maxBytes is the most that is kept, to the byte', async () => {
    const { store: free } = createStore()
    await free.complete(await claim(free, 'key'), responseOf(1_000), 60_000)
    const { bytes } = free.usage
    const { store: exact } = createStore({ maxBytes: bytes })
    assert.equal(await exact.complete(await claim(exact, 'key'), responseOf(1_000), 60_000), true)
    const { store: short } = createStore({ maxBytes: bytes - 1 })
    const owner = await claim(short, 'key')
    await assert.rejects(short.complete(owner, responseOf(1_000), 60_000), isTooLarge)
  })

  it('a response that fits once expired records are gone is taken', async () => {
    const { store, clock } = createStore({ maxBytes: 4_000 })
    await store.complete(await claim(store, 'old'), responseOf(1_500), 1_000)
    const owner = await claim(store, 'key')
    clock.now = 1_000
    assert.equal(await store.complete(owner, responseOf(1_500), 60_000), true)
    assert.equal(store.usage.records, 1)
  })

  it('headers, keys and bodies count, text by its bytes', async () => {
    const { store } = createStore()
    const owner = await claim(store, 'key')
    const empty = store.usage.bytes
    const headers = { link: ['</a>', '</b>'] }
    await store.complete(owner, { statusCode: 200, headers, body: '💳', replayable: true }, 60_000)
    const added = store.usage.bytes - empty
    assert.ok(added >= 4 + 'link</a></b>'.length, `${added} bytes`)
  })

  it('bytes do not grow when the same completion arrives again', async () => {
    const { store } = createStore()
    const owner = await claim(store, 'key')
    await store.complete(owner, responseOf(100), 60_000)
    const { bytes } = store.usage
    await store.complete(owner, responseOf(100), 60_000)
    assert.equal(store.usage.bytes, bytes)
  })
})

describe('expiry in the memory store', () => {
  it('a lease and a ttl are over at their last millisecond, not before and not after', async () => {
    const { store, clock } = createStore()
    await claim(store, 'key', { leaseMs: 100, ttlMs: 200 })
    clock.now = 99
    assert.equal((await store.claim(requestFor('key'))).outcome, 'exists')
    clock.now = 100
    assert.equal((await claim(store, 'key', { leaseMs: 50, ttlMs: 100 })).fence, 2)
    clock.now = 199
    assert.equal((await store.read('key'))?.state, 'pending')
    clock.now = 200
    assert.equal(await store.read('key'), undefined)
  })

  it('everything expired or released: no records, no bytes', async () => {
    const { store, clock } = createStore()
    const keys = Array.from({ length: 50 }, (_, index) => `key-${index}`)
    for (const [index, key] of keys.entries()) {
      const owner = await claim(store, key, { ttlMs: 1_000 * (index + 1) })
      if (index % 4 === 0) await store.complete(owner, responseOf(index), 7_000)
      if (index % 4 === 1) await store.fail(owner, 3_000)
      if (index % 4 === 2) await store.release(owner)
    }
    clock.now = 51_000
    for (const key of keys) assert.equal(await store.read(key), undefined)
    assert.deepEqual(store.usage, { records: 0, bytes: 0, refused: 0 })
  })

  it('the sweep drops what has expired although nobody asks for it, and nothing else', async (t) => {
    t.mock.timers.enable({ apis: ['setTimeout'] })
    const { store, clock } = createStore()
    const tick = (ms: number) => {
      for (const end = clock.now + ms; clock.now < end; ) {
        clock.now += 100
        t.mock.timers.tick(100)
      }
    }
    for (let index = 0; index < 100; index++) await claim(store, `short-${index}`, { ttlMs: 2_000 + index })
    await store.complete(await claim(store, 'long'), responseOf(10), 3_600_000)
    tick(4_000)
    assert.equal(store.usage.records, 1)
    assert.equal((await store.read('long'))?.state, 'completed')
    tick(3_600_000)
    assert.deepEqual(store.usage, { records: 0, bytes: 0, refused: 0 })
  })

  it('under steady traffic it holds what is live and no more', async (t) => {
    t.mock.timers.enable({ apis: ['setTimeout'] })
    const { store, clock } = createStore()
    let most = 0
    for (let index = 0; index < 2_000; index++) {
      await store.complete(await claim(store, `key-${index}`), responseOf(10), 3_000)
      clock.now += 100
      t.mock.timers.tick(100)
      most = Math.max(most, store.usage.records)
    }
    // 30 are live; the sweep comes once a second and leaves the running second to the next one.
    assert.ok(most <= 30 + 20, `${most} records`)
  })

  it('records with long and short ttls leave in their own time, also when a completion moves them', async (t) => {
    t.mock.timers.enable({ apis: ['setTimeout'] })
    const { store, clock } = createStore()
    const day = await claim(store, 'a day, then a second', { ttlMs: 86_400_000 })
    const second = await claim(store, 'a second, then a day', { ttlMs: 1_000 })
    await store.complete(day, responseOf(1), 1_000)
    await store.complete(second, responseOf(1), 86_400_000)
    clock.now = 3_000
    t.mock.timers.tick(3_000)
    assert.equal(store.usage.records, 1)
    assert.equal((await store.read('a second, then a day'))?.state, 'completed')
  })

  it('after the clock has jumped by years expired records go and live ones stay', async () => {
    const { store, clock } = createStore({ maxRecords: 3 })
    const years = 40 * 365 * 86_400_000
    await claim(store, 'a', { ttlMs: 1_000 })
    await claim(store, 'b', { ttlMs: 5_000_000 })
    await store.complete(await claim(store, 'century'), responseOf(1), 100 * 365 * 86_400_000)
    clock.now = years
    await claim(store, 'c')
    assert.equal(store.usage.records, 2)
    clock.now = years + 61_000
    await claim(store, 'd')
    await claim(store, 'e')
    assert.equal(store.usage.refused, 0)
    assert.equal((await store.read('century'))?.state, 'completed')
  })

  it('a ttl above 2^31 ms does not fire at once', async (t) => {
    const warnings: string[] = []
    const onWarning = ({ name }: Error) => void warnings.push(name)
    process.on('warning', onWarning)
    t.after(() => process.off('warning', onWarning))
    const store = new MemoryStore()
    await store.complete(await claim(store, 'completed'), responseOf(1), TWO_TO_31 + 1_000)
    await claim(store, 'pending', { leaseMs: TWO_TO_31 + 1_000, ttlMs: TWO_TO_31 * 1_000 })
    await sleep(1_100) // one sweep
    assert.equal(store.usage.records, 2)
    assert.ok(!warnings.includes('TimeoutOverflowWarning'))
    await store.close()
  })
})

describe('the life of the memory store', () => {
  it('live records do not hold the process open', async () => {
    const script = `
      import { MemoryStore } from './src/index.ts'
      const store = new MemoryStore()
      const durations = { leaseMs: 60_000, ttlMs: 3_600_000 }
      await store.claim({ scopedKey: 'k', fingerprint: 'f', token: 't', takeOverExpired: true, ...durations })
      console.log(store.usage.records)`
    const cwd = new URL('..', import.meta.url)
    const argv = ['--import', 'tsx', '--input-type=module', '--eval', script]
    const { stdout } = await promisify(execFile)(process.execPath, argv, { cwd, timeout: 20_000 })
    assert.equal(stdout, '1\n')
  })

  it('close stops the sweep and keeps the records; the next claim starts it again', async (t) => {
    t.mock.timers.enable({ apis: ['setTimeout'] })
    const { store, clock } = createStore()
    await claim(store, 'a', { ttlMs: 1_000 })
    const kept = await claim(store, 'b')
    await store.close()
    await store.close()
    clock.now = 3_000
    t.mock.timers.tick(3_000)
    assert.equal(store.usage.records, 2)
    assert.equal(await store.complete(kept, responseOf(1), 60_000), true)
    await claim(store, 'c')
    clock.now = 6_000
    t.mock.timers.tick(3_000)
    assert.equal(store.usage.records, 2)
  })

  it('warns at start with NODE_ENV=production, and only then', async (t) => {
    const before = process.env['NODE_ENV']
    t.after(() => {
      if (before === undefined) delete process.env['NODE_ENV']
      else process.env['NODE_ENV'] = before
    })
    const store = new MemoryStore()
    process.env['NODE_ENV'] = 'production'
    const warnings = await store.check()
    assert.equal(warnings.length, 1)
    assert.match(warnings[0] ?? '', /memory store.*production/)
    for (const environment of ['development', 'test', 'staging']) {
      process.env['NODE_ENV'] = environment
      assert.deepEqual(await store.check(), [])
    }
    delete process.env['NODE_ENV']
    assert.deepEqual(await store.check(), [])
  })
})

describe('the memory store beside a naive model', () => {
  it('answers the same, keeps its bounds and its accounts, whatever happens in whatever order', async () => {
    let refused = 0
    let takenOver = 0
    const property = fc.asyncProperty(
      fc.array(anyStep, { minLength: 40, maxLength: 80, size: 'max' }),
      async (steps) => {
        const comparison = new Comparison()
        for (const step of steps) await comparison.take(step)
        const end = await comparison.end()
        refused += end.refused
        takenOver += end.takenOver
      },
    )
    await fc.assert(property, { numRuns: 400 })
    assert.ok(refused > 50 && takenOver > 20, `the bounds were tried ${refused} times, takeovers ${takenOver} times`)
  })

  it('answers the same about one key that is taken over time and again, though copies of claims come late', async () => {
    let overtaken = 0
    const property = fc.asyncProperty(
      fc.array(contestedStep, { minLength: 30, maxLength: 60, size: 'max' }),
      async (steps) => {
        const comparison = new Comparison()
        for (const step of steps) await comparison.take(step)
        overtaken += (await comparison.end()).overtaken
      },
    )
    await fc.assert(property, { numRuns: 300 })
    assert.ok(overtaken > 5, `${overtaken} writes at a fence that a late copy of their claim had passed`)
  })
})
