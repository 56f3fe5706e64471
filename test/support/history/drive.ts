/** Apps that share a store, and clients that want too much of them. */

import { setTimeout as sleep } from 'node:timers/promises'
import fastify, { type FastifyInstance } from 'fastify'
import idempotency, { type IdempotencyOptions } from '../../../src/index.ts'
import { scopedKey } from '../../../src/scoped-key.ts'
import type { Bed } from './bed.ts'
import { Chance } from './chance.ts'
import { type Answer, emptyHistory, FAILURE, type History } from './history.ts'
import { type Link, ownerOf, recorded } from './recorder.ts'

/** A lease that hides nothing: shorter ones run out before a fault has shown. */
const LEASE_MS = 500
/**
 * Not all alike: the second app lets duplicates wait, and the third waits for the store for longer than a lease, so that
 * claims reach it whose lease is over.
 */
const OPTIONS: readonly IdempotencyOptions[] = [
  { storeTimeoutMs: 150 },
  { storeTimeoutMs: 150, onInProgress: { waitMs: 100 } },
  { storeTimeoutMs: 1_000 },
]
/** Longer than any run: no record is forgotten but by a release. */
const KEPT_MS = 600_000
/** Keys that are in use at the same time, and requests after which the next one comes into use. */
const KEYS = 6
const REQUESTS_PER_KEY = 12
const ATTEMPTS = 40

/** How a run goes. */
export interface Course {
  readonly seed: number
  readonly forMs: number
  readonly clients: number
}

/** Runs apps, clients and faults for a while; what happened, once everything has come to rest. */
export async function run(bed: Bed, { seed, forMs, clients }: Course): Promise<History> {
  const history = emptyHistory()
  const chance = new Chance(seed)
  const paused = new Set<string>()
  const apps = await Promise.all(bed.links.map((link, app) => startApp(link, app, { history, chance, paused })))
  const end = performance.now() + forMs
  const isOver = () => performance.now() > end
  try {
    const work = Array.from({ length: clients }, () => new Client(apps, history, chance).work(isOver))
    await Promise.all([...work, disturbUntil(isOver, bed, chance)])
  } finally {
    bed.calm()
    await Promise.all(apps.map(({ app }) => app.close()))
  }
  return history
}

async function disturbUntil(isOver: () => boolean, bed: Bed, chance: Chance): Promise<void> {
  while (!isOver()) await bed.disturb(chance)
  bed.calm()
}

interface Started {
  readonly app: FastifyInstance
  readonly url: string
}

interface Shared {
  readonly history: History
  readonly chance: Chance
  readonly paused: Set<string>
}

async function startApp(link: Link, number: number, { history, chance, paused }: Shared): Promise<Started> {
  const app = fastify({ forceCloseConnections: true })
  const store = recorded(link, number, history, paused)
  const durations = { leaseMs: LEASE_MS, ttlMs: KEPT_MS, failedTtlMs: KEPT_MS }
  await app.register(idempotency, { store, metrics: false, ...durations, ...OPTIONS[number] })
  app.post<{ Body: { amount: number } }>('/pay', async (request, reply) => {
    const { scopedKey: key, fence } = request.idempotency as NonNullable<typeof request.idempotency>
    const { amount } = request.body
    const id = history.effects.length
    history.effects.push({ id, key, app: number, fence, amount, at: performance.now() })
    const isPaused = chance.percent(14)
    if (isPaused) paused.add(ownerOf({ scopedKey: key, fence }))
    await sleep(isPaused ? chance.between(LEASE_MS * 1.1, LEASE_MS * 2.2) : durationOf(chance))
    if (chance.percent(15)) throw new Error(FAILURE)
    if (chance.percent(10)) reply.code(429) // the key is given back
    return { effect: id, amount, salt: chance.next() }
  })
  return { app, url: `${await app.listen({ host: '127.0.0.1', port: 0 })}/pay` }
}

// Few take longer than a lease, which is then renewed.
function durationOf(chance: Chance): number {
  return chance.percent(5) ? LEASE_MS * 1.4 : chance.between(0, 60)
}

/** Somebody who wants a thing done once, and asks for it until it is. */
class Client {
  readonly #apps: readonly Started[]
  readonly #history: History
  readonly #chance: Chance

  constructor(apps: readonly Started[], history: History, chance: Chance) {
    this.#apps = apps
    this.#history = history
    this.#chance = chance
  }

  async work(isOver: () => boolean): Promise<void> {
    while (!isOver()) await this.#insist(this.#newestKey(), isOver)
  }

  #newestKey(): string {
    const newest = Math.floor(this.#history.answers.length / REQUESTS_PER_KEY)
    return `k${newest + this.#chance.between(0, KEYS - 1)}`
  }

  async #insist(key: string, isOver: () => boolean): Promise<void> {
    const amount = this.#chance.percent(12) ? 999 : 100 // some reuse the key for something else
    for (let attempt = 0; attempt < ATTEMPTS && !isOver(); attempt++) {
      const { status } = await this.#send(key, amount)
      if (status === 422 || (status === 200 && this.#chance.percent(60))) return
      await sleep(this.#chance.between(0, 40))
    }
  }

  async #send(key: string, amount: number): Promise<Answer> {
    const app = this.#chance.between(0, this.#apps.length - 1)
    const patienceMs = this.#chance.percent(5) ? this.#chance.between(1, 40) : 10_000
    const t0 = performance.now()
    const got = await this.#post((this.#apps[app] as Started).url, key, amount, patienceMs)
    const answer = { key: scopedKey('anonymous', 'POST:/pay', key), app, amount, t0, t1: performance.now(), ...got }
    this.#history.answers.push(answer)
    return answer
  }

  async #post(url: string, key: string, amount: number, patienceMs: number) {
    try {
      const response = await fetch(url, {
        method: 'POST',
        headers: { 'content-type': 'application/json', 'idempotency-key': key },
        body: JSON.stringify({ amount }),
        signal: AbortSignal.timeout(patienceMs),
      })
      const body = await response.text()
      return { status: response.status, isReplay: response.headers.has('idempotent-replayed'), body }
    } catch {
      return { status: 0, isReplay: false, body: '' }
    }
  }
}
