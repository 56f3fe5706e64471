/** Does a claim cost more among many keys? Two servers, 1,000 and 1,000,000 keys, asked in turn within one loop. */

import { randomUUID } from 'node:crypto'
import { RedisStore } from 'fastify-idempotency/redis'
import { Redis } from 'ioredis'
import { type RedisServer, startRedis } from '../test/support/redis/servers.ts'
import { stayAwake } from './load.ts'
import { median, printTable, quantile } from './measure.ts'

const DAY_MS = 86_400_000
const BATCH = 5_000
/** DESIGN §10: most that p99 may grow. */
const BUDGET = 1.1

const keyOf = (name: string | number) => `idem#v1#acct_1#POST:/payments#${name}`
const requestFor = (scopedKey: string) => ({
  scopedKey,
  fingerprint: 'Zk3WcN0y0hDqJ5oY1hJ0Bq',
  token: randomUUID(),
  leaseMs: 30_000,
  ttlMs: DAY_MS,
  takeOverExpired: true,
})

/** Milliseconds that each call took. */
interface Times {
  readonly fresh: number[]
  readonly replay: number[]
}

class Target {
  readonly count: number
  readonly #server: RedisServer
  readonly #store: RedisStore

  private constructor(count: number, server: RedisServer) {
    this.count = count
    this.#server = server
    this.#store = new RedisStore({ url: server.url })
  }

  static async filled(count: number): Promise<Target> {
    const target = new Target(count, await startRedis({}))
    await target.#store.check() // from here on claims are native
    await target.#fill()
    return target
  }

  async #fill(): Promise<void> {
    const result = await this.#store.claim(requestFor(keyOf(0)))
    if (result.outcome !== 'claimed') throw new Error('the first key is taken')
    const body = JSON.stringify({ id: `pay_${randomUUID()}`, amount: 1000, currency: 'eur', status: 'captured' })
    const headers = { 'content-type': 'application/json; charset=utf-8' }
    await this.#store.complete(result.claim, { statusCode: 201, headers, body, replayable: true }, DAY_MS)
    const redis = new Redis(this.#server.url)
    const record = (await redis.getBuffer(keyOf(0))) as Buffer
    for (let from = 0; from < this.count; from += BATCH) {
      const pipeline = redis.pipeline()
      for (let i = from; i < Math.min(from + BATCH, this.count); i++) pipeline.set(keyOf(i), record, 'PX', DAY_MS)
      await pipeline.exec()
    }
    if ((await redis.dbsize()) !== this.count) throw new Error(`there are not ${this.count} keys`)
    redis.disconnect()
  }

  /** One claim of a new key, given back so that the number of keys stays, and one of a key that is recorded. */
  async ask(times: Times): Promise<void> {
    const fresh = performance.now()
    const result = await this.#store.claim(requestFor(keyOf(randomUUID())))
    times.fresh.push(performance.now() - fresh)
    if (result.outcome !== 'claimed') throw new Error('a new key is taken')
    await this.#store.release(result.claim)

    const recorded = requestFor(keyOf(Math.floor(Math.random() * this.count)))
    const replay = performance.now()
    const { outcome } = await this.#store.claim(recorded)
    times.replay.push(performance.now() - replay)
    if (outcome !== 'exists') throw new Error('a recorded key is free')
  }

  async stop(): Promise<void> {
    await this.#store.close()
    await this.#server.stop()
  }
}

export async function keys(rounds = 15, asks = 3_000): Promise<void> {
  const targets = [await Target.filled(1_000), await Target.filled(1_000_000)] as const
  const all: { small: Times; large: Times }[] = []
  let isRunning = true
  stayAwake(() => isRunning, 0)
  for (let round = 0; round <= rounds; round++) {
    const times = { small: { fresh: [], replay: [] }, large: { fresh: [], replay: [] } }
    for (let i = 0; i < asks; i++) {
      await targets[0].ask(times.small)
      await targets[1].ask(times.large)
    }
    if (round > 0) all.push(times) // the first one warms up
    process.stderr.write(`round ${round} of ${rounds}\n`)
  }
  isRunning = false
  await Promise.all(targets.map((target) => target.stop()))
  report(all, asks)
}

function report(all: readonly { small: Times; large: Times }[], asks: number): void {
  console.log(`Node ${process.version}, ${all.length} rounds of ${asks} calls, one at a time; medians of the rounds`)
  const rows = (['fresh', 'replay'] as const).flatMap((kind) =>
    [0.5, 0.99].map((share) => {
      const small = all.map((times) => quantile(times.small[kind], share))
      const large = all.map((times) => quantile(times.large[kind], share))
      const ratio = median(large.map((ms, round) => ms / (small[round] ?? Number.NaN)))
      const budget = share === 0.99 ? `≤ ${BUDGET} ${ratio <= BUDGET ? 'met' : 'NOT met'}` : ''
      const us = (values: readonly number[]) => (median(values) * 1_000).toFixed(0)
      return [
        `${kind === 'fresh' ? 'new key' : 'replay'}, p${share * 100}`,
        us(small),
        us(large),
        ratio.toFixed(2),
        budget,
      ]
    }),
  )
  printTable(['claim', '1,000 keys µs', '1,000,000 keys µs', 'ratio', 'budget'], rows)
}
