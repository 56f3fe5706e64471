/**
 * What the plugin costs on the memory store: server CPU per request and throughput beside a bare route.
 * `npm run bench`, or `npm run bench -- <rounds> <seconds>`. How it measures: measure.ts.
 */

import { beside, inTurn, median, printTable, startServer, type Variant } from './measure.ts'

const [rounds = 7, seconds = 2] = process.argv.slice(2).map(Number)

interface Budgeted extends Variant {
  /** Most that the variant may cost beside the bare route, in microseconds of server CPU (DESIGN §10). */
  readonly budgetUs?: number
}

const bare: Budgeted = { name: 'bare route', server: 'bare' }

const variants: Budgeted[] = [
  bare,
  { name: 'route not covered', server: 'uncovered', budgetUs: 1 },
  { name: 'no key', server: 'plugin', header: 'x-request-key', budgetUs: 1 },
  { name: 'by hand, first request', server: 'hand' },
  { name: 'by hand, replay', server: 'hand', repeats: true },
  { name: 'first request', server: 'plugin', budgetUs: 12 },
  { name: 'replay', server: 'plugin', repeats: true, budgetUs: 0 },
  { name: 'first request, default credential and metrics', server: 'defaults' },
  { name: 'replay, default credential and metrics', server: 'defaults', repeats: true },
]

const server = await startServer('server.js')
const samples = await inTurn(variants, rounds, (variant) => server.measure(variant, seconds))
server.stop()

console.log(
  `Node ${process.version}, ${rounds} rounds of ${seconds} s, medians; extra CPU is the median of per-round differences`,
)
const base = samples.get(bare) ?? []
const rows = [...samples].map(([{ name, budgetUs }, own]) => {
  const extraUs = beside(own, base, (a, b) => a.cpuUs - b.cpuUs)
  const ratio = beside(own, base, (a, b) => a.perSecond / b.perSecond)
  const budget = budgetUs === undefined ? '' : `≤ ${budgetUs} ${extraUs <= budgetUs ? 'met' : 'NOT met'}`
  const perSecond = Math.round(median(own.map((s) => s.perSecond)))
  return [
    name,
    median(own.map((s) => s.cpuUs)).toFixed(1),
    extraUs.toFixed(1),
    budget,
    perSecond,
    `${(ratio * 100).toFixed(0)} %`,
  ]
})
printTable(['variant', 'CPU µs/request', 'extra µs', 'budget', 'requests/s', 'of bare'], rows)
