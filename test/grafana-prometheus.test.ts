/**
 * A real Prometheus scrapes the demo under load: every query of every panel has data. With GRAFANA_PICTURES=1
 * (`npm run grafana:pictures`) the data is drawn into docs/images.
 */

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { runTraffic, type Tally } from '../examples/traffic-clients.ts'
import { COLORS, PALETTE } from '../grafana/src/format.ts'
import { type PicturePanel, picture } from '../grafana/src/picture.ts'
import { type Demo, startDemo } from './support/demo.ts'
import { type DynamoDBProxy, startProxy } from './support/dynamodb/proxy.ts'
import { startOwnDynamoDB } from './support/dynamodb/server.ts'
import { type DashboardPanel, type DashboardVariable, dashboards } from './support/prometheus/dashboards.ts'
import { startRedisExporter } from './support/prometheus/exporter.ts'
import { type Prometheus, type Series, startPrometheus } from './support/prometheus/server.ts'
import { eventually } from './support/redis/processes.ts'
import { startRedis } from './support/redis/servers.ts'

const LEASE_MS = 1_500
/** So many that some calls have had the four attempts of the AWS client, and the store has to back off itself. */
const THROTTLES = 150
const RATE = 20
/** Long enough for a rate over several scrapes, before and after the crash. */
const SECONDS = { before: 9, after: 11 }
const IMAGES = join(import.meta.dirname, '..', 'docs', 'images')
/** What does not happen while the test looks. */
const NOT_IN_THIS_RUN = [
  'ALERTS',
  'idempotency_unprotected_total',
  'idempotency_lease_lost_total',
  'idempotency_late_completions_total',
  'idempotency_not_replayable_total',
]
/** What Grafana fills in, by name. */
type Values = Readonly<Record<string, string>>

let prometheus: Prometheus
let start: number
let end: number
let tallies: readonly Tally[]
const stops: (() => unknown)[] = []

before(async () => {
  const redis = await startRedis({ aof: 'everysec', args: ['--maxmemory', '64mb'] })
  const dynamodb = await startOwnDynamoDB()
  const proxy = await startProxy(dynamodb)
  stops.push(() => Promise.all([redis.stop(), dynamodb.stop(), proxy.stop()]))
  const onRedis = { IDEMPOTENCY_STORE: redis.url, LEASE_MS: String(LEASE_MS) }
  const onDynamoDB = { IDEMPOTENCY_STORE: `dynamodb://${new URL(proxy.endpoint).host}/idempotency` }
  const demos = await Promise.all([startDemo(), startDemo(onDynamoDB), startDemo(onRedis), startDemo(onRedis)])
  const exporter = await startRedisExporter()
  stops.push(exporter.stop, ...demos.map(({ kill }) => kill))
  prometheus = await startPrometheus({ payments: demos.map(({ target }) => target), redis: [exporter.target] })
  stops.push(prometheus.stop)
  await eventually('all to be scraped', async () => (await prometheus.value('sum(up)')) === demos.length + 1)
  start = Date.now() / 1_000
  const [onMemory, throttled, survivor, victim] = demos
  const runs = [trafficOn(onMemory), trafficThroughThrottling(throttled, proxy), trafficThroughCrash(survivor, victim)]
  tallies = (await Promise.all(runs)).flat()
  end = Date.now() / 1_000
})

after(async () => {
  for (const stop of stops.reverse()) await stop()
})

async function trafficOn({ url }: Demo): Promise<Tally[]> {
  return [await runTraffic({ urls: [url], seconds: SECONDS.before + SECONDS.after, rate: RATE })]
}

/** DynamoDB refuses some requests for want of capacity, which are made again. */
async function trafficThroughThrottling({ url }: Demo, proxy: DynamoDBProxy): Promise<Tally[]> {
  const before = await runTraffic({ urls: [url], seconds: SECONDS.before, rate: RATE })
  proxy.answer(THROTTLES, { status: 400, error: 'ProvisionedThroughputExceededException' })
  return [before, await runTraffic({ urls: [url], seconds: SECONDS.after, rate: RATE })]
}

/** Two processes on one store, of which one dies in a request. */
async function trafficThroughCrash(survivor: Demo, victim: Demo): Promise<Tally[]> {
  const urls = [survivor.url, victim.url]
  const onBoth = await runTraffic({ urls, seconds: SECONDS.before, rate: RATE })
  const retry = await crash(victim, survivor)
  const onOne = await runTraffic({ urls: [survivor.url], seconds: SECONDS.after, rate: RATE })
  await retry()
  return [onBoth, onOne]
}

/** A process dies while it works on a request; returns what waits for the answer of the other one to the retry. */
async function crash(victim: Demo, survivor: Demo): Promise<() => Promise<void>> {
  const key = randomUUID()
  const send = ({ url }: Demo) =>
    fetch(`${url}/slow?ms=2000`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'x-api-key': 'demo-ada', 'idempotency-key': key },
      body: JSON.stringify({ amount: 100, currency: 'EUR' }),
    })
  const lost = assert.rejects(send(victim))
  const isRunning = async () => (await metricsOf(victim)).includes('idempotency_pending{store="redis"} 1')
  await eventually('the request to run', isRunning)
  await victim.kill()
  await lost
  const answered = eventually('the retry to be answered', async () => (await send(survivor)).status === 201)
  return () => answered
}

async function metricsOf({ url }: Demo): Promise<string> {
  return (await fetch(`${url}/metrics`)).text()
}

for (const { name, title, panels, variables } of dashboards()) {
  test(`every query of the ${name} dashboard has data`, async () => {
    const values = await valuesOf(variables)
    const drawn = await Promise.all(panels.map((panel) => withData(panel, values)))
    if (name === 'dynamodb') assert.ok(newestOf(drawn, /^Throttled, 5 min/) > 0, 'the first throttles count too')
    const svg = picture(title, drawn, start, end)
    assert.doesNotMatch(svg, /NaN|Infinity|undefined/)
    if (process.env['GRAFANA_PICTURES']) writeFileSync(join(IMAGES, `${name}.svg`), svg)
  })
}

function newestOf(panels: readonly PicturePanel[], title: RegExp): number {
  return panels.find((panel) => title.test(panel.title))?.lines[0]?.points.at(-1)?.[1] ?? 0
}

async function withData(panel: DashboardPanel, values: Values): Promise<PicturePanel> {
  const found = (await Promise.all(panel.queries.map((query) => linesOf(panel, query, values)))).flat()
  const lines = found.map((line, i) => {
    const chosen = COLORS[panel.colors[line.name] ?? '']
    return { ...line, color: chosen ?? (PALETTE[i % PALETTE.length] as string) }
  })
  return { ...panel, title: filledIn(panel.title, values), lines, hasBand: panel.thresholdsStyle === 'dashed+area' }
}

/** What the choices at the top of a dashboard are at first, as Grafana finds them out: from the top down. */
async function valuesOf(variables: readonly DashboardVariable[]): Promise<Values> {
  const values: Record<string, string> = { $__rate_interval: '5s' }
  for (const { name, type, query, current, allValue } of variables) {
    if (type !== 'query') continue
    const [, selector = '', label = ''] = /^label_values\((.*), (\w+)\)$/.exec(query) ?? []
    const found = await prometheus.labelValues(filledIn(selector, values), label)
    assert.ok(found.length > 0, `$${name} has no values: ${query}`)
    const isAll = current.value === '$__all'
    assert.ok(isAll || found.includes(current.value), `$${name} is ${current.value}, and there are ${found}`)
    values[`$${name}`] = isAll ? (allValue ?? found.join('|')) : current.value
  }
  return values
}

/**
 * The answer to one query of a panel, which must not be empty. Where nothing is drawn as 0, the query without that must
 * have an answer too, for some store: a label that does not exist would be nothing as well.
 */
async function linesOf({ title }: DashboardPanel, { expr, legend }: DashboardPanel['queries'][number], values: Values) {
  const query = filledIn(expr, values)
  assert.doesNotMatch(query, /\$/, `${title} asks for something that is not chosen`)
  const answer = await prometheus.range(query, start, end, 1)
  const lines = answer.map((series) => ({ name: named(legend, series), points: pointsOf(series) }))
  assert.ok(
    lines.some(({ points }) => points.length > 0),
    `${title} has no data for ${query}`,
  )
  const withoutZero = query.replace(/ or (on \(store\) 0 \* .*|vector\(0\))$/, '')
  const isQuiet = NOT_IN_THIS_RUN.some((metric) => query.includes(metric))
  if (isQuiet || withoutZero === query) return lines
  const ofAnyStore = withoutZero.replaceAll(/store=~"[^"]*"/g, 'store=~".+"')
  const answered = await prometheus.range(ofAnyStore, start, end, 1)
  assert.ok(answered.length > 0, `${title} has nothing but zeros for ${ofAnyStore}`)
  return lines
}

function filledIn(text: string, values: Values): string {
  return Object.entries(values).reduce((result, [name, value]) => result.replaceAll(name, value), text)
}

function named(legend: string, { metric }: Series): string {
  return legend.replaceAll(/{{(\w+)}}/g, (_, label) => metric[label] ?? '').trim()
}

function pointsOf({ values }: Series): [number, number][] {
  const points = values.map(([at, value]): [number, number] => [at, Number(value)])
  return points.filter(([, value]) => Number.isFinite(value))
}

test('no client was charged twice, and Prometheus counts what the clients saw', async () => {
  const trouble = tallies.map(({ doubled, errors }) => `${doubled} doubled, ${errors} errors`)
  assert.deepEqual(trouble, Array(5).fill('0 doubled, 0 errors'))
  const [{ executed, failed, replayed, mismatches, conflicts }] = tallies as [Tally]
  const seen = { claimed: executed + failed, replayed, mismatch: mismatches, in_progress: conflicts }
  for (const [outcome, count] of Object.entries(seen)) {
    const total = `sum(idempotency_claims_total{store="memory", outcome="${outcome}"})`
    // The last requests are seen by the next scrape.
    await eventually(`${count} ${outcome}`, async () => (await prometheus.value(total)) === count)
  }
})

test('the crash shows as a takeover and throttling as throttling, and both raise their alerts', async () => {
  const takenOver = 'sum(idempotency_claims_total{store="redis", outcome="taken_over"})'
  assert.equal(await prometheus.value(takenOver), 1)
  const throttled = await prometheus.value('sum(idempotency_dynamodb_throttled_total)')
  assert.ok((throttled ?? 0) > 0, 'none throttled')
  for (const alert of ['IdempotencyTakeovers', 'IdempotencyDynamoDBThrottled']) {
    // Pending for the time that each has to last.
    assert.ok(((await prometheus.value(`count(ALERTS{alertname="${alert}"})`)) ?? 0) > 0, alert)
  }
})
