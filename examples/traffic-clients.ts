/** Clients of the payments API as they are in practice: they retry, hang up, send things twice and reuse keys. */

import { randomInt, randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'

/** What has been seen so far. All but `executed` and `doubled` are counted as answers come. */
export interface Tally {
  /** Requests that were sent, retries included. */
  sent: number
  /** Payments that clients meant to make. */
  orders: number
  /** Charges that were made for them, as the API tells afterwards. */
  executed: number
  /** Answers that came from a record. */
  replayed: number
  /** 409: the first request still ran. */
  conflicts: number
  /** 422: the key belongs to another request. */
  mismatches: number
  /** Requests whose client hung up before the answer. */
  aborted: number
  /** 502 and 503: failed attempts, which their clients repeat. */
  failed: number
  /** Connections that broke, answers that nobody expects, and orders that got none. */
  errors: number
  /** Charges beyond the first for one order. */
  doubled: number
}

export interface TrafficOptions {
  /** Base URLs of processes that share a store; a retry goes to the next one. */
  readonly urls: readonly string[]
  /** How long new orders are made, in seconds. */
  readonly seconds: number
  /** Orders per second. */
  readonly rate: number
  /** Told after each answer. */
  readonly onProgress?: (tally: Readonly<Tally>) => void
}

/** A payment that somebody wants once, however many requests it takes. */
interface Order {
  readonly key: string
  readonly amount: number
  readonly path: string
  readonly apiKey: string
}

const API_KEYS = ['demo-ada', 'demo-grace']
const CURRENCY = 'EUR'
/** Amounts are how an order is found among the charges, so no two orders of a run have the same one. */
const MAX_AMOUNT = 100_000_000
const MAX_ORDERS = 1_000_000
/** How long a client repeats a request, and how long it waits in between, in ms. */
const PATIENCE_MS = 20_000
const PAUSE_MS = 100
const IMPATIENT_MS = 40
const ANSWER_TIMEOUT_MS = 10_000

/** Makes orders for some time, waits until all have their answer, and counts what was charged. */
export async function runTraffic(options: TrafficOptions): Promise<Tally> {
  const clients = new Clients(options)
  const running: Promise<void>[] = []
  const start = performance.now()
  while (performance.now() - start < options.seconds * 1_000) {
    const due = Math.min(Math.floor(((performance.now() - start) / 1_000) * options.rate) + 1, MAX_ORDERS)
    while (running.length < due) running.push(clients.placeOrder(running.length))
    await sleep(1_000 / options.rate)
  }
  await Promise.all(running)
  await clients.countCharges()
  return clients.tally
}

class Clients {
  readonly tally: Tally = {
    sent: 0,
    orders: 0,
    executed: 0,
    replayed: 0,
    conflicts: 0,
    mismatches: 0,
    aborted: 0,
    failed: 0,
    errors: 0,
    doubled: 0,
  }
  readonly #options: TrafficOptions
  readonly #firstAmount = randomInt(1, MAX_AMOUNT - 2 * MAX_ORDERS)
  #amounts = 0

  constructor(options: TrafficOptions) {
    this.#options = options
  }

  /** One client with one order; in which way it misbehaves goes round. */
  async placeOrder(turn: number): Promise<void> {
    this.tally.orders += 1
    const order: Order = {
      key: randomUUID(),
      amount: this.#nextAmount(),
      path: '/payments',
      apiKey: API_KEYS[turn % API_KEYS.length] as string,
    }
    switch (turn % 10) {
      case 1:
        return this.#retryNeedlessly(order)
      case 3:
        return this.#hangUp(order)
      case 5:
        return this.#sendAtOnce(order)
      case 7:
        return this.#deliver({ ...order, path: '/flaky' })
      case 9:
        return this.#reuseKey(order)
      default:
        return this.#deliver(order)
    }
  }

  /** Finds this run's orders among the charges of all processes. */
  async countCharges(): Promise<void> {
    const counts = new Map<number, number>()
    for (const url of this.#options.urls) {
      for (const apiKey of API_KEYS) {
        for (const amount of await chargedAmounts(url, apiKey)) counts.set(amount, (counts.get(amount) ?? 0) + 1)
      }
    }
    // Two amounts for each order: its own, and one that is only sent with a key that was used before.
    for (let order = 0; order < this.tally.orders; order++) {
      const own = this.#firstAmount + 2 * order
      const charges = (counts.get(own) ?? 0) + (counts.get(own + 1) ?? 0)
      this.tally.executed += charges
      this.tally.doubled += Math.max(0, charges - 1)
    }
  }

  #nextAmount(): number {
    this.#amounts += 1
    return this.#firstAmount + 2 * (this.#amounts - 1)
  }

  /** The answer was not seen, so the request is made again. */
  async #retryNeedlessly(order: Order): Promise<void> {
    await this.#deliver(order)
    await this.#deliver(order)
  }

  /** Hangs up while the charge is being made, and comes back for the answer. */
  async #hangUp(order: Order): Promise<void> {
    const slow = { ...order, path: '/slow?ms=200' }
    await this.#send(slow, 0, IMPATIENT_MS)
    await this.#deliver(slow)
  }

  /** Three clicks on one button. */
  async #sendAtOnce(order: Order): Promise<void> {
    const slow = { ...order, path: '/slow?ms=150' }
    await Promise.all([0, 1, 2].map(() => this.#deliver(slow)))
  }

  /** Uses a key for a second order: the mistake that must not charge anything. */
  async #reuseKey(order: Order): Promise<void> {
    await this.#deliver(order)
    await this.#deliver({ ...order, amount: order.amount + 1 }, 422)
  }

  /** Sends until there is a final answer, as a client should: same key, another process, bounded. It should be `wanted`. */
  async #deliver(order: Order, wanted = 201): Promise<void> {
    const deadline = performance.now() + PATIENCE_MS
    for (let attempt = 0; performance.now() < deadline; attempt++) {
      const status = await this.#send(order, attempt)
      if (status === wanted) return
      if (status !== undefined && ![409, 502, 503].includes(status)) break
      await sleep(PAUSE_MS)
    }
    this.tally.errors += 1
  }

  /** One request; its status, or undefined when there was no answer. */
  async #send({ key, amount, path, apiKey }: Order, attempt: number, hangUpAfterMs?: number) {
    const { urls, onProgress } = this.#options
    this.tally.sent += 1
    try {
      const response = await fetch(`${urls[(amount + attempt) % urls.length]}${path}`, {
        method: 'POST',
        headers: { 'content-type': 'application/json', 'x-api-key': apiKey, 'idempotency-key': key },
        body: JSON.stringify({ amount, currency: CURRENCY }),
        signal: AbortSignal.timeout(hangUpAfterMs ?? ANSWER_TIMEOUT_MS),
      })
      await response.arrayBuffer()
      this.#count(response)
      return response.status
    } catch {
      this.tally[hangUpAfterMs === undefined ? 'errors' : 'aborted'] += 1
      return undefined
    } finally {
      onProgress?.(this.tally)
    }
  }

  #count({ status, headers }: Response): void {
    if (headers.has('idempotent-replayed')) this.tally.replayed += 1
    else if (status === 409) this.tally.conflicts += 1
    else if (status === 422) this.tally.mismatches += 1
    else if (status === 502 || status === 503) this.tally.failed += 1
  }
}

/** What has been charged to an account; nothing from a process that is gone, which took its ledger with it. */
async function chargedAmounts(url: string, apiKey: string): Promise<number[]> {
  try {
    const response = await fetch(`${url}/payments`, { headers: { 'x-api-key': apiKey } })
    const { charges } = (await response.json()) as { charges: { amount: number }[] }
    return charges.map(({ amount }) => amount)
  } catch {
    return []
  }
}
