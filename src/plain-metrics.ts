/**
 * Metrics of what every request counts. prom-client checks and hashes the labels of each observation, bound or not, and
 * takes no buckets counted elsewhere. These are registered beside its own and count in plain numbers, which a registry
 * reads at a scrape.
 */

import type { Metric, Registry } from 'prom-client'

/** A metric whose series are looked up once: prom-client's own metrics are such, and so are the plain ones. */
interface SeriesOf<Series> {
  labels(labels: Labels): Series
}

type Labels = Readonly<Record<string, string>>

/** Plain metrics of a registry by name, made where it does not have them yet; of what it has, whatever that is. */
export function plainInstruments(registry: Registry) {
  const metric = <Series extends PlainSeries>(
    type: MetricType,
    name: string,
    help: string,
    make: (labels: Labels) => Series,
  ): SeriesOf<Omit<Series, keyof PlainSeries>> => {
    const existing: unknown = registry.getSingleMetric(name)
    if (existing !== undefined) return existing as SeriesOf<Series>
    const made = new PlainMetric(type, name, help, make)
    // A registry asks no more of a metric than name, type, get() and reset(); its types want what users call, too.
    registry.registerMetric(made as unknown as Metric)
    return made
  }
  const newNumber = (labels: Labels) => new PlainNumber(labels)
  return {
    counter: (name: string, help: string) => metric('counter', name, help, newNumber),
    gauge: (name: string, help: string) => metric('gauge', name, help, newNumber),
    histogram: (name: string, help: string, buckets: readonly number[]) => {
      const bounds = [...buckets, Number.POSITIVE_INFINITY]
      return metric('histogram', name, help, (labels) => new PlainBuckets(labels, bounds))
    },
  }
}

type MetricType = 'counter' | 'gauge' | 'histogram'

interface Sample {
  readonly labels: Readonly<Record<string, string | number>>
  readonly value: number
  readonly metricName?: string
}

interface PlainSeries {
  samples(name: string): Sample[]
  reset(): void
}

class PlainMetric<Series extends PlainSeries> implements SeriesOf<Series> {
  readonly type: MetricType
  name: string // a registry for OpenMetrics takes `_total` off it
  readonly help: string
  readonly aggregator = 'sum'
  readonly #make: (labels: Labels) => Series
  readonly #series = new Map<string, Series>()

  constructor(type: MetricType, name: string, help: string, make: (labels: Labels) => Series) {
    this.type = type
    this.name = name
    this.help = help
    this.#make = make
  }

  labels(labels: Labels): Series {
    const key = JSON.stringify(labels)
    const series = this.#series.get(key) ?? this.#make(labels)
    this.#series.set(key, series)
    return series
  }

  async get() {
    const { type, name, help, aggregator } = this
    const values = [...this.#series.values()].flatMap((series) => series.samples(name))
    return { type, name, help, aggregator, values }
  }

  reset(): void {
    if (this.type === 'gauge') return // it says what is, and that does not end with a reset
    for (const series of this.#series.values()) series.reset()
  }
}

class PlainNumber implements PlainSeries {
  readonly #labels: Labels
  #value = 0

  constructor(labels: Labels) {
    this.#labels = labels
  }

  inc(): void {
    this.#value++
  }

  dec(): void {
    this.#value--
  }

  samples(): Sample[] {
    return [{ labels: this.#labels, value: this.#value }]
  }

  reset(): void {
    this.#value = 0
  }
}

class PlainBuckets implements PlainSeries {
  readonly #labels: Labels
  readonly #bounds: readonly number[]
  readonly #counts: Float64Array
  #sum = 0

  constructor(labels: Labels, bounds: readonly number[]) {
    this.#labels = labels
    this.#bounds = bounds
    this.#counts = new Float64Array(bounds.length)
  }

  observe(value: number): void {
    const bucket = this.#bounds.findIndex((bound) => value <= bound)
    this.#counts[bucket] = (this.#counts[bucket] ?? 0) + 1
    this.#sum += value
  }

  samples(name: string): Sample[] {
    const labels = this.#labels
    let count = 0
    const buckets = this.#bounds.map((bound, at) => {
      count += this.#counts[at] ?? 0
      const le = bound === Number.POSITIVE_INFINITY ? '+Inf' : bound
      return { metricName: `${name}_bucket`, labels: { le, ...labels }, value: count }
    })
    if (count === 0) return []
    const sum = { metricName: `${name}_sum`, labels, value: this.#sum }
    return [...buckets, sum, { metricName: `${name}_count`, labels, value: count }]
  }

  reset(): void {
    this.#counts.fill(0)
    this.#sum = 0
  }
}
