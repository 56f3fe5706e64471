/** A store in this process as apps far away would reach it: the way is slow, and requests and replies get lost on it. */

import { setTimeout as sleep } from 'node:timers/promises'
import type { IdempotencyStore } from '../../../src/store.ts'
import { intercepted } from '../stores.ts'
import { APPS, type Bed } from './bed.ts'
import { Chance } from './chance.ts'
import type { Link } from './recorder.ts'

type Perform = () => Promise<unknown>
type Happened = Record<
  'lost replies' | 'lost replies, requests sent again' | 'late copies' | 'late requests' | 'late replies',
  number
>

/** Three apps, each with a network of its own to one store. */
export function networkBed(store: IdempotencyStore, seed: number): Bed {
  const chance = new Chance(seed)
  const happened: Happened = {
    'lost replies': 0,
    'lost replies, requests sent again': 0,
    'late copies': 0,
    'late requests': 0,
    'late replies': 0,
  }
  return {
    links: Array.from({ length: APPS }, () => new Network(store, chance, happened)),
    disturb: () => sleep(50), // the networks do so by themselves
    calm() {},
    faults: () => happened,
    async stop() {},
  }
}

class Network implements Link {
  readonly store: IdempotencyStore
  readonly #chance: Chance
  readonly #happened: Happened
  #losses = 0

  constructor(store: IdempotencyStore, chance: Chance, happened: Happened) {
    this.#chance = chance
    this.#happened = happened
    this.store = intercepted(store, (_, perform) => this.#send(perform))
  }

  losses(): number {
    return this.#losses
  }

  async #send(perform: Perform): Promise<unknown> {
    await this.#travel()
    const dice = this.#chance.between(1, 100)
    if (dice <= 4) return this.#sendAgain(perform)
    if (dice <= 6) return this.#loseReply(perform)
    if (dice <= 8) return this.#loseRequest(perform)
    const answer = await perform()
    if (dice <= 11) await this.#holdUp()
    await this.#travel()
    return answer
  }

  async #sendAgain(perform: Perform): Promise<unknown> {
    this.#happened['lost replies, requests sent again']++
    this.#losses++
    await perform()
    await this.#travel()
    if (this.#chance.percent(50)) this.#later(perform, 'late copies')
    return perform()
  }

  async #loseReply(perform: Perform): Promise<never> {
    this.#happened['lost replies']++
    await perform()
    throw new Error('the connection was lost')
  }

  // What a driver has in a queue is carried out although its caller was told of a failure.
  #loseRequest(perform: Perform): never {
    this.#later(perform, 'late requests')
    throw new Error('the connection was lost')
  }

  async #holdUp(): Promise<void> {
    this.#happened['late replies']++
    await sleep(this.#chance.between(300, 800))
  }

  #later(perform: Perform, what: 'late copies' | 'late requests'): void {
    const arrive = () => {
      this.#happened[what]++
      perform().catch(() => {})
    }
    setTimeout(arrive, this.#chance.between(0, 700)).unref()
  }

  async #travel(): Promise<void> {
    await sleep(this.#chance.between(0, 6))
  }
}
