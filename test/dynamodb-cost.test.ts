/** What estimateCost says, against sums done by hand, and against the figures that the docs print. */

import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, it } from 'node:test'
import fc from 'fast-check'
import { estimateCost, LIST_PRICES, type Load, type Prices } from '../src/stores/dynamodb/cost.ts'

const HOUR = 3_600_000
const DAY = 24 * HOUR

/** One request per second for a month of 730 hours: 2,628,000 requests. */
const steady: Load = { requestsPerSecond: 1, duplicateRatio: 0, itemBytes: 924, claimBytes: 400, ttlMs: DAY }

const estimate = (changes: Partial<Load> = {}) => estimateCost({ ...steady, ...changes })

function assertClose(actual: number, expected: number, what: string) {
  assert.ok(Math.abs(actual - expected) <= Math.abs(expected) * 1e-9, `${what}: ${actual}, by hand ${expected}`)
}

describe('write units per first request', () => {
  it('are one for a claim and one for a completion that stay within 1,024 bytes', () => {
    assert.deepEqual(estimate().writeUnits, { claim: 1, renewals: 0, completion: 1, duplicates: 0, total: 2 })
  })

  it('are counted in whole units of 1,024 bytes', () => {
    const unitsOf = (itemBytes: number) => estimate({ itemBytes }).writeUnits.completion
    assert.deepEqual([1, 1_024, 1_025, 2_048, 2_049, 409_600].map(unitsOf), [1, 1, 2, 2, 3, 400])
    assert.equal(estimate({ claimBytes: 1_025 }).writeUnits.claim, 2)
  })

  it('have each duplicate cost what the item it finds would cost to write', () => {
    const { duplicates, total } = estimate({ duplicateRatio: 0.25, itemBytes: 3_000 }).writeUnits
    assert.equal(duplicates, 0.75)
    assert.equal(total, 1 + 3 + 0.75)
  })

  it('have each renewal cost what the claim did', () => {
    const { renewals, total } = estimate({ leasesRenewed: 2.5, claimBytes: 1_500 }).writeUnits
    assert.equal(renewals, 5)
    assert.equal(total, 2 + 5 + 1)
  })

  it('double for the claim, and for nothing else, with the index', () => {
    const { claim, renewals, completion, duplicates } = estimate({
      index: true,
      leasesRenewed: 1,
      duplicateRatio: 1,
      itemBytes: 2_000,
    }).writeUnits
    assert.deepEqual(
      { claim, renewals, completion, duplicates },
      { claim: 2, renewals: 1, completion: 2, duplicates: 2 },
    )
  })
})

describe('on demand', () => {
  it('one request per second costs 5,256,000 units, 3.29 dollars, a month', () => {
    const { units, writes } = estimate().onDemand
    assert.equal(units, 5_256_000)
    assertClose(writes, 3.285, 'writes')
  })

  it('grows with the mean, not with the peak', () => {
    assert.deepEqual(estimate({ peakRequestsPerSecond: 1_000 }).onDemand, estimate().onDemand)
    assertClose(estimate({ requestsPerSecond: 40 }).onDemand.writes, 40 * 3.285, 'writes')
  })
})

describe('provisioned', () => {
  it('needs peak × (1 + duplicate ratio) units for the claims, and as many as the peak for the completions', () => {
    const { units, writes } = estimate({ peakRequestsPerSecond: 200, duplicateRatio: 0.1 }).provisioned
    assert.equal(units, 200 * (1 + 0.1) + 200)
    assertClose(writes, 420 * 0.000_65 * 730, 'writes')
  })

  it('is sized for the mean when no peak is given', () => {
    assert.equal(estimate({ requestsPerSecond: 30 }).provisioned.units, 60)
  })

  it('rounds up to whole units, and not for the last binary digit of a product', () => {
    assert.equal(estimate({ requestsPerSecond: 0.4 }).provisioned.units, 1)
    const exact = fc.tuple(fc.integer({ min: 1, max: 10_000 }), fc.integer({ min: 0, max: 20 }))
    fc.assert(
      fc.property(exact, ([peak, twentieths]) => {
        const { units } = estimate({ peakRequestsPerSecond: peak, duplicateRatio: twentieths / 20 }).provisioned
        assert.equal(units, Math.ceil((peak * (40 + twentieths)) / 20))
      }),
    )
  })
})

describe('storage', () => {
  it('counts 100 bytes per item more, and the 48 hours that expired items stay', () => {
    const { stored, onDemand, provisioned } = estimate()
    // 86,400 s of TTL and 172,800 s of late deletion, one item of 924 + 100 bytes in each.
    assert.deepEqual(stored, { items: 259_200, bytes: 259_200 * 1_024 })
    assertClose(onDemand.storage, 0.265_420_8 * 0.25, 'storage')
    assert.equal(provisioned.storage, onDemand.storage)
    assert.equal(onDemand.total, onDemand.writes + onDemand.storage)
    assert.equal(provisioned.total, provisioned.writes + provisioned.storage)
  })

  it('is that of the TTL alone when nothing is deleted late', () => {
    assert.equal(estimate({ deletedLateMs: 0 }).stored.items, 86_400)
    assert.equal(estimate({ deletedLateMs: HOUR }).stored.items, 90_000)
  })

  it('counts an index entry with its own 100 bytes', () => {
    assert.equal(estimate({ index: true }).stored.bytes, 259_200 * (924 + 100 + 400 + 100))
  })
})

describe('a Redis beside it', () => {
  it('has nodes enough for the keys of a TTL at the peak, and their replicas', () => {
    const load = { requestsPerSecond: 50, peakRequestsPerSecond: 100, redisBytesPerKey: 2_680 }
    const { keys, bytes, nodes, total } = estimate(load).redis
    assert.equal(keys, 8_640_000)
    assert.equal(bytes, 23_155_200_000)
    // 23.2 GB on nodes of 10.5: three, each with a replica.
    assert.equal(nodes, 6)
    assertClose(total, 6 * 730 * 0.219, 'total')
  })

  it('holds what a peak that is shorter than the TTL leaves behind', () => {
    const load = { requestsPerSecond: 50, peakRequestsPerSecond: 100, peakMs: HOUR }
    assert.equal(estimate(load).redis.keys, 100 * 3_600 + 50 * 82_800)
    assert.equal(estimate({ ...load, peakMs: 2 * DAY }).redis.keys, 100 * 86_400)
  })

  it('is one node at least, also for next to nothing', () => {
    assert.equal(estimate({ requestsPerSecond: 0, redisReplicas: 0 }).redis.nodes, 1)
    assert.equal(estimate({ redisReplicas: 2 }).redis.nodes, 3)
  })

  it('has no late deletions: Redis forgets on time', () => {
    assert.deepEqual(estimate({ deletedLateMs: 0 }).redis, estimate().redis)
  })
})

describe('what is not given', () => {
  const { claimBytes: _, ...bare } = steady

  it('is a claim of one unit and 500 bytes', () => {
    assert.equal(estimateCost(bare).writeUnits.claim, 1)
    assert.deepEqual(estimateCost({ ...bare, index: true }), estimate({ index: true, claimBytes: 500 }))
  })

  it('is a Redis record a little larger than the item, as measured', () => {
    assertClose(estimate().redis.bytes, 86_400 * 924 * 1.15, 'bytes')
  })
})

describe('prices', () => {
  it('are those of November 2026 in us-east-1 until others are given, one by one', () => {
    const own: Partial<Prices> = { millionWriteUnits: 1.25 }
    assertClose(estimate({ prices: own }).onDemand.writes, 6.57, 'writes')
    assert.equal(estimate({ prices: own }).onDemand.storage, estimate().onDemand.storage)
    assert.deepEqual(estimate({ prices: LIST_PRICES }), estimate({ prices: {} }))
  })

  it('of nothing make everything free but the sizes', () => {
    const free = { millionWriteUnits: 0, provisionedUnitHour: 0, storedGigabyte: 0, redisNodeHour: 0 }
    const { onDemand, provisioned, redis } = estimate({ prices: free })
    assert.deepEqual([onDemand.total, provisioned.total, redis.total], [0, 0, 0])
    assert.equal(onDemand.units, 5_256_000)
  })

  it('decide the size of the Redis too', () => {
    assert.equal(estimate({ redisBytesPerKey: 1_000, prices: { redisNodeBytes: 43_200_000 } }).redis.nodes, 4)
  })
})

describe('a load that makes no sense is refused by the name of its member', () => {
  const wrong: [changes: object, message: string][] = [
    [{ requestsPerSecond: undefined }, '"requestsPerSecond" takes a number of at least 0, got undefined'],
    [{ requestsPerSecond: -1 }, '"requestsPerSecond" takes a number of at least 0, got -1'],
    [{ requestsPerSecond: Number.NaN }, '"requestsPerSecond" takes a number of at least 0, got NaN'],
    [{ requestsPerSecond: Infinity }, '"requestsPerSecond" takes a number of at least 0, got Infinity'],
    [{ requestsPerSecond: '5' }, '"requestsPerSecond" takes a number of at least 0, got 5'],
    [{ peakRequestsPerSecond: 0.5 }, '"peakRequestsPerSecond" takes at least requestsPerSecond, got 0.5'],
    [{ peakMs: 0 }, '"peakMs" takes a whole number of at least 1, got 0'],
    [{ duplicateRatio: undefined }, '"duplicateRatio" takes a number of at least 0, got undefined'],
    [{ duplicateRatio: -0.1 }, '"duplicateRatio" takes a number of at least 0, got -0.1'],
    [{ itemBytes: undefined }, '"itemBytes" takes a whole number of 1 to 409600, got undefined'],
    [{ itemBytes: 0 }, '"itemBytes" takes a whole number of 1 to 409600, got 0'],
    [{ itemBytes: 409_601 }, '"itemBytes" takes a whole number of 1 to 409600, got 409601'],
    [{ itemBytes: 10.5 }, '"itemBytes" takes a whole number of 1 to 409600, got 10.5'],
    [{ claimBytes: 0 }, '"claimBytes" takes a whole number of 1 to 409600, got 0'],
    [{ ttlMs: undefined }, '"ttlMs" takes a whole number of at least 1, got undefined'],
    [{ ttlMs: 0 }, '"ttlMs" takes a whole number of at least 1, got 0'],
    [{ leasesRenewed: -1 }, '"leasesRenewed" takes a number of at least 0, got -1'],
    [{ index: 'yes' }, '"index" takes true or false, got yes'],
    [{ deletedLateMs: -1 }, '"deletedLateMs" takes a whole number of at least 0, got -1'],
    [{ redisBytesPerKey: 0 }, '"redisBytesPerKey" takes a number of at least 1, got 0'],
    [{ redisReplicas: 0.5 }, '"redisReplicas" takes a whole number of at least 0, got 0.5'],
    [{ prices: { storedGigabyte: -1 } }, '"prices.storedGigabyte" takes a number of at least 0, got -1'],
    [{ prices: { redisNodeBytes: 0 } }, '"prices.redisNodeBytes" takes a number of at least 1, got 0'],
    [{ requestsPerSeconds: 5 }, 'unknown member "requestsPerSeconds"'],
    [{ prices: { storage: 1 } }, 'unknown member "prices.storage"'],
  ]
  for (const [changes, message] of wrong) {
    it(message, () => {
      assert.throws(() => estimateCost({ ...steady, ...changes } as Load), {
        code: 'FST_IDEMPOTENCY_INVALID_OPTION',
        message: `fastify-idempotency: estimateCost: ${message}`,
      })
    })
  }
})

describe('docs/stores/dynamodb.md', () => {
  const page = readFileSync(join(import.meta.dirname, '../docs/stores/dynamodb.md'), 'utf8')
  const prose = page.replaceAll(/\s+/g, ' ')
  const load = exampleOf(page)

  /** What is between the parentheses of the page's `estimateCost(…)`. */
  function exampleOf(text: string): Load {
    const [, literal] = /estimateCost\((\{.*?\})\)/s.exec(text) ?? []
    return Object.fromEntries(
      [...(literal ?? '').matchAll(/(\w+): ([\d._]+),/g)].map(([, name, digits = '']) => [
        name,
        Number(digits.replaceAll('_', '')),
      ]),
    ) as unknown as Load
  }

  const money = (dollars: number) => dollars.toFixed(2)
  const count = (value: number) => Math.round(value).toLocaleString('en')

  function assertRow(...cells: string[]) {
    const rows = page.split('\n').map((line) => line.split('|').slice(1, -1))
    const found = rows.find(([name]) => name?.trim() === cells[0])?.map((cell) => cell.trim())
    assert.deepEqual(found, cells)
  }

  it('prints what its example answers', () => {
    const { onDemand, provisioned, redis } = estimateCost(load)
    const moneyOf = ({ writes, storage, total }: typeof onDemand) => [writes, storage, total].map(money)
    assertRow('on demand', `${count(onDemand.units)} write units`, ...moneyOf(onDemand))
    assertRow('provisioned', `${provisioned.units} write units in a second`, ...moneyOf(provisioned))
    const size = `${count(redis.keys)} keys, ${(redis.bytes / 1e9).toFixed(1)} GB: ${redis.nodes} nodes`
    assertRow('Redis', size, money(redis.total), '', money(redis.total))
  })

  it('is right about when to provision', () => {
    const factor = Number(/peak is below ([\d.]+) times the mean/.exec(prose)?.[1])
    const at = (peak: number) => estimateCost({ ...load, peakRequestsPerSecond: load.requestsPerSecond * peak })
    const { provisioned, onDemand } = at(factor - 0.05)
    assert.ok(provisioned.total < onDemand.total, 'provisioned is cheaper just below')
    assert.ok(at(factor + 0.05).provisioned.total > onDemand.total, 'and dearer just above')
  })

  it('is right about one request per second', () => {
    const { onDemand } = estimateCost({ ...load, requestsPerSecond: 1 })
    assert.equal(/At one request per second the same month costs USD ([\d.]+)/.exec(prose)?.[1], money(onDemand.total))
  })
})
