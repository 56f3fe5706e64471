/**
 * What the plugin costs on the memory store: server CPU per request and throughput beside a bare route.
 * `npm run bench`, or `npm run bench -- <processes> <rounds> <requests>`. How it measures: measure.ts.
 */

import { beside, inTurn, median, type Plan, planText, printTable, type Variant } from './measure.ts'

const [processes = 4, rounds = 8, requests = 5_000] = process.argv.slice(2).map(Number)
const plan: Plan = { script: 'server.js', warmUp: 30_000, processes, rounds, requests }

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

const samples = await inTurn(variants, plan)

console.log(`${planText(plan)}; extra CPU is the median of per-round differences`)
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
