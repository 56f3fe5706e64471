/** Claims under way while a Redis fails over, and what became of them: the measure behind `redis-failover.test.ts`. */

import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { Redis } from 'ioredis'
import type { ClaimResult } from '../../../src/store.ts'
import type { RedisStore } from '../../../src/stores/redis/index.ts'
import { eventually } from './processes.ts'
import { infoField, type RedisServer } from './servers.ts'

/** What an event did to the claims that were made around it. */
export interface Outcome {
  /** Keys with at least one answer `claimed`: their handler would have run. */
  readonly acknowledged: number
  /** Acknowledged keys that can be claimed anew afterwards: the next retry would run them again. */
  readonly lost: number
  /** Keys with two answers `claimed` while the event went on. */
  readonly runTwice: number
  /** Calls that were rejected: a 503 to the client. */
  readonly unknown: number
  /** The longest time without an answer `claimed`, those of clients that were cut off aside. */
  readonly gapMs: number
}

const LEASE_MS = 600_000
const RETRY_AFTER_MS = 4
const PAUSE_MS = 8
/** After a refusal a client does not come back at once; without this a dead server costs the test a whole core. */
const PAUSE_AFTER_ERROR_MS = 25
const RECLAIM_AT_ONCE = 100

/** A claim with a token of its own and a lease that outlasts every test. */
export function freshRequest(scopedKey: string) {
  const token: string = randomUUID()
  return { scopedKey, token, fingerprint: 'f', leaseMs: LEASE_MS, ttlMs: LEASE_MS, takeOverExpired: true }
}

/** Claimers of fresh keys, each key tried a second time by another client a few ms later. */
export class ClaimLoad {
  readonly #keyPrefix: string
  /** Answers `claimed` by key. */
  readonly #claimed = new Map<string, number>()
  readonly #running: Promise<void>[] = []
  readonly #cutOff = new Set<RedisStore>()
  #unknown = 0
  #lastError: unknown
  #lastClaimAt = performance.now()
  #gapMs = 0
  #isStopped = false

  constructor(keyPrefix: string) {
    this.#keyPrefix = keyPrefix
  }

  get acknowledged(): number {
    return this.#claimed.size
  }

  /** Starts a claimer: `first` claims a fresh key, `second` tries it again. */
  add(first: RedisStore, second: RedisStore): void {
    this.#running.push(this.#claimFreshKeys(first, second))
  }

  /** The claims of this store say nothing about when the topology was back. */
  markCutOff(store: RedisStore): void {
    this.#cutOff.add(store)
  }

  /** Resolves when so many more keys than now are acknowledged. */
  more(count: number): Promise<void> {
    const enough = this.acknowledged + count
    return this.#until(`${count} more claims`, () => this.acknowledged >= enough)
  }

  /** Resolves when so many more calls than now were rejected. */
  moreUnknown(count: number): Promise<void> {
    const enough = this.#unknown + count
    return this.#until(`${count} more rejections`, () => this.#unknown >= enough)
  }

  async stop(): Promise<void> {
    this.#isStopped = true
    await Promise.all(this.#running)
  }

  /** Claims every acknowledged key again, with another token: those that are given are lost. */
  async outcome(store: RedisStore): Promise<Outcome> {
    const keys = [...this.#claimed.keys()]
    const again = await inBatches(keys, RECLAIM_AT_ONCE, (key) => reclaim(store, key))
    return {
      acknowledged: keys.length,
      lost: again.filter(isAnew).length,
      runTwice: [...this.#claimed.values()].filter((answers) => answers > 1).length,
      unknown: this.#unknown,
      gapMs: Math.round(this.#gapMs),
    }
  }

  async #until(what: string, condition: () => boolean): Promise<void> {
    await patiently(what, condition).catch((error: Error) => {
      throw new Error(`${error.message}; last rejection: ${this.#lastError}`)
    })
  }

  async #claimFreshKeys(first: RedisStore, second: RedisStore): Promise<void> {
    while (!this.#isStopped) {
      const key = this.#keyPrefix + randomUUID()
      await this.#attempt(first, key)
      await sleep(RETRY_AFTER_MS)
      await this.#attempt(second, key)
      await sleep(PAUSE_MS)
    }
  }

  async #attempt(store: RedisStore, key: string): Promise<void> {
    try {
      const { outcome } = await store.claim(freshRequest(key))
      if (outcome === 'claimed') this.#noteClaimed(key, this.#cutOff.has(store))
    } catch (error) {
      this.#unknown++
      this.#lastError = error
      await sleep(PAUSE_AFTER_ERROR_MS)
    }
  }

  #noteClaimed(key: string, isCutOff: boolean): void {
    this.#claimed.set(key, (this.#claimed.get(key) ?? 0) + 1)
    if (isCutOff) return
    const now = performance.now()
    this.#gapMs = Math.max(this.#gapMs, now - this.#lastClaimAt)
    this.#lastClaimAt = now
  }
}

function isAnew(result: ClaimResult): boolean {
  return result.outcome === 'claimed' && result.claim.fence === 1
}

/** Asks, with one token, until there is an answer. */
async function reclaim(store: RedisStore, key: string): Promise<ClaimResult> {
  const again = freshRequest(key)
  let result: ClaimResult | undefined
  await eventually('an answer to the second claim', async () => {
    result = await store.claim(again).catch(() => undefined)
    return result !== undefined
  })
  return result as ClaimResult
}

async function inBatches<Item, Result>(items: readonly Item[], size: number, of: (item: Item) => Promise<Result>) {
  const results: Result[] = []
  for (let at = 0; at < items.length; at += size) {
    results.push(...(await Promise.all(items.slice(at, at + size).map(of))))
  }
  return results
}

const FILLER_PIECES = 24
const PIECE_BYTES = 1_048_576

/**
 * Writes 24 MiB to a master whose replicas stand still. Less would fit into the sockets' buffers, from which they
 * would read the claims that follow although the master is dead.
 */
export async function fill(master: RedisServer): Promise<void> {
  const client = new Redis(master.url, { retryStrategy: null })
  client.on('error', () => {})
  const piece = Buffer.alloc(PIECE_BYTES, 'x')
  try {
    await Promise.all(Array.from({ length: FILLER_PIECES }, (_, at) => client.set(`filler:${at}`, piece)))
  } finally {
    client.disconnect()
  }
}

/** Bytes by which each replica has fallen behind its master, as far as the master knows. */
export async function replicationLags(master: RedisServer): Promise<number[]> {
  const info = await master.cli('info', 'replication')
  const written = Number(infoField(info, 'master_repl_offset'))
  return [...info.matchAll(/^slave\d+:.*\boffset=(\d+)/gm)].map(([, offset]) => written - Number(offset))
}

/**
 * `eventually`, twice as long: a Sentinel looks at a stray master or replica every ten seconds only, and may have to
 * look twice before it tells it whom to follow.
 */
export async function patiently(what: string, condition: () => boolean | Promise<boolean>): Promise<void> {
  await eventually(what, condition).catch(() => eventually(what, condition))
}

/** Whether a server says that it is a replica. */
export async function isReplica(server: RedisServer): Promise<boolean> {
  return infoField(await server.cli('info', 'replication').catch(() => ''), 'role') === 'slave'
}
