/**
 * What the plugin costs on the memory store: server CPU per request and throughput beside a bare route.
 *
 * All variants are measured in turn, several rounds in one run, because the machine's speed drifts; each figure is the
 * median of its rounds. The client never sleeps: a fast variant would keep it busy anyway, but with a slower one it
 * would doze off between responses, and waking it is charged to the server with every write (measured: 6 µs).
 * `npm run bench`, or `npm run bench -- <rounds> <seconds>`.
 */

import { fork } from 'node:child_process'
import { once } from 'node:events'
import autocannon from 'autocannon'

const [rounds = 7, seconds = 2] = process.argv.slice(2).map(Number)
const PAYLOAD = JSON.stringify({
  amount: 1000,
  currency: 'eur',
  customer: { id: 'cus_1' },
  lines: [{ sku: 'a', n: 1 }],
})

interface Variant {
  readonly name: string
  readonly server: string
  /** Every variant sends one more header, so that client and parser do the same work for all. */
  readonly header?: string
  readonly value?: () => string
  /** Most that the variant may cost beside the bare route, in microseconds of server CPU (DESIGN §10). */
  readonly budgetUs?: number
}

let keys = 0
const freshKey = () => `"key-${process.pid}-${keys++}"`

const sameKey = () => '"key-which-all-replays-share"'

const variants: Variant[] = [
  { name: 'bare route', server: 'bare' },
  { name: 'route not covered', server: 'uncovered', budgetUs: 1 },
  { name: 'no key', server: 'plugin', header: 'x-request-key', budgetUs: 1 },
  { name: 'first request', server: 'plugin', budgetUs: 12 },
  { name: 'replay', server: 'plugin', value: sameKey, budgetUs: 0 },
  { name: 'first request, default credential and metrics', server: 'defaults' },
  { name: 'replay, default credential and metrics', server: 'defaults', value: sameKey },
]

interface Sample {
  readonly cpuUs: number
  readonly perSecond: number
}

const server = fork(new URL('server.js', import.meta.url))
const [{ urls }] = (await once(server, 'message')) as [{ urls: Record<string, string> }]

async function cpuUs(): Promise<number> {
  server.send('cpu')
  const [reading] = (await once(server, 'message')) as [{ cpuUs: number }]
  return reading.cpuUs
}

async function load({ server: name, header = 'idempotency-key', value = freshKey }: Variant) {
  const fixed = { 'content-type': 'application/json', authorization: 'Bearer token-1' }
  const result = await autocannon({
    url: `${urls[name]}/payments`,
    method: 'POST',
    connections: 32,
    duration: seconds,
    body: PAYLOAD,
    requests: [{ setupRequest: (request) => ({ ...request, headers: { ...fixed, [header]: value() } }) }],
  })
  if (result.non2xx + result.errors > 0) throw new Error(`${name}: ${result.non2xx} non-2xx, ${result.errors} errors`)
  return result.requests.total
}

async function measure(variant: Variant): Promise<Sample> {
  const before = await cpuUs()
  const requests = await load(variant)
  const after = await cpuUs()
  return { cpuUs: (after - before) / requests, perSecond: requests / seconds }
}

function stayAwake(): void {
  setImmediate(stayAwake).unref()
}

function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b)
  return sorted[Math.floor(sorted.length / 2)] ?? Number.NaN
}

stayAwake()
const samples = new Map<Variant, Sample[]>(variants.map((variant) => [variant, []]))
for (const variant of variants) await measure(variant) // warm-up
for (let round = 1; round <= rounds; round++) {
  for (const [variant, own] of samples) own.push(await measure(variant))
  process.stderr.write(`round ${round} of ${rounds}\n`)
}
server.disconnect()

const bareSamples = samples.values().next().value ?? []
console.log(
  `Node ${process.version}, ${rounds} rounds of ${seconds} s, medians; extra CPU is the median of per-round differences`,
)
console.log('| variant | CPU µs/request | extra µs | budget | requests/s | of bare |')
console.log('|---|---|---|---|---|---|')
for (const [{ name, budgetUs }, own] of samples) {
  const extraUs = median(own.map(({ cpuUs }, round) => cpuUs - (bareSamples[round]?.cpuUs ?? Number.NaN)))
  const ratio = median(own.map(({ perSecond }, round) => perSecond / (bareSamples[round]?.perSecond ?? Number.NaN)))
  const budget = budgetUs === undefined ? '' : `≤ ${budgetUs} ${extraUs <= budgetUs ? 'met' : 'NOT met'}`
  const cells = [name, median(own.map((s) => s.cpuUs)).toFixed(1), extraUs.toFixed(1), budget]
  console.log(
    `| ${[...cells, Math.round(median(own.map((s) => s.perSecond))), `${(ratio * 100).toFixed(0)} %`].join(' | ')} |`,
  )
}
