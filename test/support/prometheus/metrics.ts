/** Which metrics there are, and which of them a query asks for. */

import fastify from 'fastify'
import { Registry } from 'prom-client'
import idempotency from '../../../src/index.ts'
import type { StoreFigure } from '../../../src/store.ts'
import { Meter } from '../../../src/stores/dynamodb/figures.ts'
import type { RedisClient } from '../../../src/stores/redis/client.ts'
import { redisFigures } from '../../../src/stores/redis/figures.ts'
import { redisExporter } from './exporter.ts'

/** Names that look like a metric and are a label. */
const LABELS = ['idempotency_store']

/** The series that a query names: of a histogram `_bucket` and so on. */
export function metricsIn(query: string): string[] {
  const names = query.match(/\b(?:idempotency|redis)_[a-z_]+\b/g) ?? []
  return [...new Set(names)].filter((name) => !LABELS.includes(name))
}

/** What a query names and neither the plugin, nor a store, nor redis_exporter has. */
export async function unknownMetrics(query: string): Promise<string[]> {
  known ??= knownMetrics()
  const names = await known
  return metricsIn(query).filter((name) => !names.has(name))
}

let known: Promise<ReadonlySet<string>> | undefined

async function knownMetrics(): Promise<ReadonlySet<string>> {
  const metrics = new Registry()
  const app = fastify()
  await app.register(idempotency, { metrics })
  await app.close()
  const figures: readonly StoreFigure[] = [...redisFigures({} as RedisClient).list, ...new Meter().list]
  const ofStores = figures.flatMap(({ name, type }) => seriesOf(name, type === 'histogram'))
  return new Set([...ofStores, ...[metrics, redisExporter().registry].flatMap(seriesIn)])
}

function seriesIn(registry: Registry): string[] {
  return registry
    .getMetricsAsArray()
    .flatMap((metric) => seriesOf(metric.name, (metric as unknown as { type: string }).type === 'histogram'))
}

function seriesOf(name: string, isHistogram: boolean): string[] {
  return isHistogram ? ['_bucket', '_sum', '_count'].map((suffix) => name + suffix) : [name]
}
