/** A Prometheus as a child process on loopback, with the configuration and the rules of `grafana/`. */

import { cpSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { endChild, eventually, freePort, hasEnded, logTail, newFolder, startChild } from '../redis/processes.ts'
import { prometheusBinaries } from './binaries.ts'

/** One line of a graph. */
export interface Series {
  readonly metric: Readonly<Record<string, string>>
  /** Seconds since 1970, and the value as text (`NaN` among them). */
  readonly values: readonly (readonly [at: number, value: string])[]
}

export interface Prometheus {
  /** The value of the first series of an instant query, undefined without one. */
  value(expr: string): Promise<number | undefined>
  /** A query over a time range, in seconds since 1970. */
  range(expr: string, start: number, end: number, step: number): Promise<readonly Series[]>
  /** The values of a label among the series of a selector. */
  labelValues(selector: string, label: string): Promise<string[]>
  stop(): Promise<void>
}

/** What is scraped, by job: `host:port`. */
export type Targets = Readonly<Record<'payments' | 'redis', readonly string[]>>

const GRAFANA = join(import.meta.dirname, '..', '..', '..', 'grafana')
/** In seconds; shorter than in production, so that a test need not last for minutes. */
const SCRAPE_INTERVAL = 1

/** Starts one and waits until it answers. */
export async function startPrometheus(targets: Targets): Promise<Prometheus> {
  const { prometheus } = await prometheusBinaries()
  const folder = newFolder('prometheus')
  writeConfig(folder, targets)
  const port = await freePort()
  const options = [
    `--config.file=${join(folder, 'prometheus.yml')}`,
    `--storage.tsdb.path=${join(folder, 'data')}`,
    `--web.listen-address=127.0.0.1:${port}`,
    '--log.level=warn',
  ]
  const child = startChild(prometheus, options, folder)
  const url = `http://127.0.0.1:${port}`
  await eventually('Prometheus to be ready', async () => {
    if (hasEnded(child)) throw new Error(`prometheus ended at once:\n${logTail(folder)}`)
    return fetch(`${url}/-/ready`).then(
      ({ ok }) => ok,
      () => false,
    )
  })
  return {
    async value(expr) {
      const { result } = await ask<Answer<{ value: [number, string] }>>(`${url}/api/v1/query`, { query: expr })
      const [series] = result
      return series === undefined ? undefined : Number(series.value[1])
    },
    async range(expr, start, end, step) {
      const times = { start: String(start), end: String(end), step: String(step) }
      return (await ask<Answer<Series>>(`${url}/api/v1/query_range`, { query: expr, ...times })).result
    },
    async labelValues(selector, label) {
      const found = await ask<Record<string, string>[]>(`${url}/api/v1/series`, { 'match[]': selector })
      return [...new Set(found.flatMap((series) => series[label] ?? []))].sort()
    },
    stop: () => endChild(child, 'SIGTERM'),
  }
}

/** The configuration of `grafana/`, with other targets and a shorter interval. */
function writeConfig(folder: string, targets: Targets): void {
  const config = readFileSync(join(GRAFANA, 'prometheus.yml'), 'utf8')
  writeFileSync(join(folder, 'prometheus.yml'), config.replaceAll('15s', `${SCRAPE_INTERVAL}s`))
  cpSync(join(GRAFANA, 'alerts'), join(folder, 'alerts'), { recursive: true })
  mkdirSync(join(folder, 'targets'))
  for (const [job, addresses] of Object.entries(targets)) {
    // JSON is YAML.
    writeFileSync(join(folder, 'targets', `${job}.yml`), JSON.stringify([{ targets: addresses }]))
  }
}

interface Answer<Result> {
  readonly result: readonly Result[]
}

async function ask<Answered>(url: string, parameters: Record<string, string>): Promise<Answered> {
  const response = await fetch(url, { method: 'POST', body: new URLSearchParams(parameters) })
  const answer = (await response.json()) as { status: string; error?: string; data: Answered }
  if (answer.status === 'success') return answer.data
  throw new Error(`Prometheus refused ${JSON.stringify(parameters)}: ${answer.error}`)
}
