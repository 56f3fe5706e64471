/**
 * What the benches share: a server in a process of its own, load on it, and its CPU per request.
 *
 * All variants are measured in turn, several rounds in one run, because the machine's speed drifts; each figure is the
 * median of its rounds. The client never sleeps: a fast variant would keep it busy anyway, but with a slower one it
 * would doze off between responses, and waking it is charged to the server with every write (measured: 6 µs).
 */

import { fork } from 'node:child_process'
import { once } from 'node:events'
import autocannon from 'autocannon'

const PAYLOAD = JSON.stringify({
  amount: 1000,
  currency: 'eur',
  customer: { id: 'cus_1' },
  lines: [{ sku: 'a', n: 1 }],
})

/** One row of a table: what is sent, and to which of the server's routes. */
export interface Variant {
  readonly name: string
  readonly server: string
  /** Every variant sends one more header, so that client and parser do the same work for all. */
  readonly header?: string
  /** Sends one key again and again: replays. Otherwise each request has its own. */
  readonly repeats?: boolean
}

export interface Sample {
  /** Of the server, per request. */
  readonly cpuUs: number
  readonly perSecond: number
  readonly requests: number
}

/** The measured process. */
export interface MeasuredServer {
  /** One measurement of one variant. */
  measure(variant: Variant, seconds: number): Promise<Sample>
  stop(): void
}

let keys = 0

const freshKey = () => `"key-${process.pid}-${keys++}"`

/** Starts a script that ends with `serve()`. */
export async function startServer(script: string, args: readonly string[] = []): Promise<MeasuredServer> {
  const server = fork(new URL(script, import.meta.url), args)
  // A server that cannot start says so itself, and never sends its addresses.
  server.once('exit', (code) => code && process.exit(code))
  const [{ urls }] = (await once(server, 'message')) as [{ urls: Record<string, string> }]

  async function cpuUs(): Promise<number> {
    server.send('cpu')
    const [reading] = (await once(server, 'message')) as [{ cpuUs: number }]
    return reading.cpuUs
  }

  stayAwake()
  return {
    async measure(variant, seconds) {
      const { header = 'idempotency-key', repeats = false } = variant
      const send = { url: `${urls[variant.server]}/payments`, header, value: freshKey }
      if (repeats) send.value = await recordedKey(send)
      const before = await cpuUs()
      const requests = await load(send, seconds)
      const after = await cpuUs()
      return { cpuUs: (after - before) / requests, perSecond: requests / seconds, requests }
    },
    stop: () => server.disconnect(),
  }
}

/** Keeps this process from sleeping. */
export function stayAwake(): void {
  setImmediate(stayAwake).unref()
}

interface Sending {
  readonly url: string
  readonly header: string
  readonly value: () => string
}

const FIXED_HEADERS = { 'content-type': 'application/json', authorization: 'Bearer token-1' }

/** A key of its own for each measurement, so that no record expires in the middle of one. */
async function recordedKey({ url, header }: Sending): Promise<() => string> {
  const key = freshKey()
  const { status } = await fetch(url, { method: 'POST', headers: { ...FIXED_HEADERS, [header]: key }, body: PAYLOAD })
  if (status !== 200) throw new Error(`${url} answered ${status}`)
  return () => key
}

async function load({ url, header, value }: Sending, seconds: number): Promise<number> {
  const result = await autocannon({
    url,
    method: 'POST',
    connections: 32,
    duration: seconds,
    body: PAYLOAD,
    requests: [{ setupRequest: (request) => ({ ...request, headers: { ...FIXED_HEADERS, [header]: value() } }) }],
  })
  if (result.non2xx + result.errors > 0) throw new Error(`${url}: ${result.non2xx} non-2xx, ${result.errors} errors`)
  return result.requests.total
}

/** Measures all variants in turn, `rounds` times, after one round to warm up. */
export async function inTurn<Row, Result>(
  variants: readonly Row[],
  rounds: number,
  measure: (variant: Row) => Promise<Result>,
): Promise<ReadonlyMap<Row, readonly Result[]>> {
  const samples = new Map<Row, Result[]>(variants.map((variant) => [variant, []]))
  for (const variant of variants) await measure(variant)
  for (let round = 1; round <= rounds; round++) {
    for (const [variant, own] of samples) own.push(await measure(variant))
    process.stderr.write(`round ${round} of ${rounds}\n`)
  }
  return samples
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
