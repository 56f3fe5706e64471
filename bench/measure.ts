/**
 * What the benches share: servers in processes of their own, load on them, and their CPU per request.
 *
 * Each variant has a server of its own, and all are measured in turn, several rounds in one run, because a machine's
 * speed drifts. All that is done with several processes for each variant: how V8 compiles the same code differs from
 * process to process by a microsecond or two. Each figure is a median. How the load is made: load.ts.
 */

import { fork } from 'node:child_process'
import { once } from 'node:events'
import { Load } from './load.ts'

const PAYLOAD = JSON.stringify({
  amount: 1000,
  currency: 'eur',
  customer: { id: 'cus_1' },
  lines: [{ sku: 'a', n: 1 }],
})

/** One row of a table: what is sent, and to which server. */
export interface Variant {
  readonly name: string
  /** Which of the script's servers. */
  readonly server: string
  /** Every variant sends one more header, so that client and parser do the same work for all. */
  readonly header?: string
  /** Sends one key again and again: replays. Otherwise each request has its own. */
  readonly repeats?: boolean
}

/** How much is measured. */
export interface Plan {
  /** The servers' script, and what it is told besides which server to be. */
  readonly script: string
  readonly args?: readonly string[]
  /** Requests to each process before the first that counts, for V8 to compile what is hot. */
  readonly warmUp: number
  /** Processes for each variant, one after the other. */
  readonly processes: number
  /** Measurements of each process. */
  readonly rounds: number
  /** Requests of each measurement. */
  readonly requests: number
}

export interface Sample {
  /** Of the server, per request. */
  readonly cpuUs: number
  readonly perSecond: number
  readonly requests: number
}

let keys = 0

const freshKey = () => `key-${process.pid}-${keys++}`

/** The requests of one variant: all alike but for their keys. */
function messages({ server, header = 'idempotency-key' }: Variant): (key: string) => string {
  const head = [
    'POST /payments HTTP/1.1',
    `Host: ${server}`,
    'Connection: keep-alive',
    'Content-Type: application/json',
    'Authorization: Bearer token-1',
    `Content-Length: ${PAYLOAD.length}`,
  ]
  return (key) => `${head.join('\r\n')}\r\n${header}: "${key}"\r\n\r\n${PAYLOAD}`
}

/** A server process and the connections to it. */
class MeasuredServer {
  readonly #process: ReturnType<typeof fork>
  readonly #load: Load

  private constructor(process: ReturnType<typeof fork>, load: Load) {
    this.#process = process
    this.#load = load
  }

  static async start({ script, args = [] }: Plan, name: string): Promise<MeasuredServer> {
    const server = fork(new URL(script, import.meta.url), [name, ...args])
    // A server that cannot start says so itself, and never sends its address.
    server.once('exit', (code) => code && process.exit(code))
    const [{ url }] = (await once(server, 'message')) as [{ url: string }]
    return new MeasuredServer(server, await Load.connect(url))
  }

  async measure(variant: Variant, requests: number): Promise<Sample> {
    const messageFor = messages(variant)
    let message = () => messageFor(freshKey())
    if (variant.repeats) {
      // A key of its own for each measurement, so that no record expires in the middle of one.
      const recorded = message()
      await this.#load.send(1, () => recorded)
      message = () => recorded
    }
    const before = await this.#cpuUs()
    const startedAt = performance.now()
    await this.#load.send(requests, message)
    const seconds = (performance.now() - startedAt) / 1_000
    return { cpuUs: ((await this.#cpuUs()) - before) / requests, perSecond: requests / seconds, requests }
  }

  async #cpuUs(): Promise<number> {
    this.#process.send('cpu')
    const [{ cpuUs }] = (await once(this.#process, 'message')) as [{ cpuUs: number }]
    return cpuUs
  }

  stop(): void {
    this.#load.close()
    this.#process.disconnect()
  }
}

/**
 * Measures all variants in turn.
 * @param observe what to note of each measurement besides, around it
 */
export async function inTurn<Row extends Variant, Result extends Sample = Sample>(
  variants: readonly Row[],
  plan: Plan,
  observe: (take: () => Promise<Sample>) => Promise<Result> = (take) => take() as Promise<Result>,
): Promise<ReadonlyMap<Row, readonly Result[]>> {
  const samples = new Map<Row, Result[]>(variants.map((variant) => [variant, []]))
  for (let set = 1; set <= plan.processes; set++) {
    const servers = new Map<string, MeasuredServer>()
    for (const { server } of variants) {
      if (!servers.has(server)) servers.set(server, await MeasuredServer.start(plan, server))
    }
    const measure = (variant: Variant, requests: number) =>
      (servers.get(variant.server) as MeasuredServer).measure(variant, requests)
    for (const variant of variants) await measure(variant, plan.warmUp)
    for (let round = 0; round < plan.rounds; round++) {
      for (const [variant, own] of samples) own.push(await observe(() => measure(variant, plan.requests)))
    }
    for (const server of servers.values()) server.stop()
    process.stderr.write(`processes ${set} of ${plan.processes}\n`)
  }
  return samples
}

/** What was measured, for the head of a table. */
export function planText({ processes, rounds, requests }: Plan): string {
  return `Node ${process.version}, ${processes} processes, ${rounds} rounds of ${requests} requests each; medians`
}

export function median(values: readonly number[]): number {
  return quantile(values, 0.5)
}

export function quantile(values: readonly number[], share: number): number {
  const sorted = values.toSorted((a, b) => a - b)
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? Number.NaN
}

/** The median of what `compare` makes of the samples of each round and those of the bare route in that round. */
export function beside<Result>(
  own: readonly Result[],
  base: readonly Result[],
  compare: (own: Result, base: Result) => number,
): number {
  return median(own.flatMap((sample, round) => (base[round] === undefined ? [] : [compare(sample, base[round])])))
}

/** The head of the cells that {@link besideByHand} makes. */
export const BESIDE_BY_HAND = ['variant', 'CPU µs/request', 'over bare', '× by hand', 'budget', 'requests/s']

/** How one variant compares with the bare route and with the hand-written one, and with its budget for the latter. */
export function besideByHand(
  { name }: Variant,
  own: readonly Sample[],
  bare: readonly Sample[],
  byHand: readonly Sample[],
  budget: number | undefined,
): (string | number)[] {
  const ratio = beside(own, byHand, (a, b) => a.cpuUs / b.cpuUs)
  return [
    name,
    median(own.map((s) => s.cpuUs)).toFixed(1),
    beside(own, bare, (a, b) => a.cpuUs - b.cpuUs).toFixed(1),
    ratio.toFixed(2),
    budget === undefined ? '' : `≤ ${budget} ${ratio <= budget ? 'met' : 'NOT met'}`,
    Math.round(median(own.map((s) => s.perSecond))),
  ]
}

/** A Markdown table. */
export function printTable(head: readonly string[], rows: readonly (readonly (string | number)[])[]): void {
  for (const cells of [head, head.map(() => '---'), ...rows]) console.log(`| ${cells.join(' | ')} |`)
}
