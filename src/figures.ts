/** prom-client's metrics, and what a store tells of itself: gauges are read at a scrape, the others are told of. */

import type { Counter, Gauge, Histogram, Registry } from 'prom-client'
import type { FigureListener, StoreFigure, StoreFigures } from './store.ts'

/** The module, loaded when it is there. */
export type PromClient = typeof import('prom-client')

/** Metrics of a registry by name, made where it does not have them yet. All have the label `store`. */
export function instruments(client: PromClient, registry: Registry) {
  const existing = <Metric>(name: string) => registry.getSingleMetric(name) as Metric | undefined
  const settings = (name: string, help: string, labels: readonly string[]) => ({
    name,
    help,
    labelNames: ['store', ...labels],
    registers: [registry],
  })
  return {
    counter: (name: string, help: string, ...labels: string[]) =>
      existing<Counter>(name) ?? new client.Counter(settings(name, help, labels)),
    gauge: (name: string, help: string, ...labels: string[]) =>
      existing<Gauge>(name) ?? new client.Gauge(settings(name, help, labels)),
    histogram: (name: string, help: string, buckets: readonly number[] | undefined, ...labels: string[]) =>
      existing<Histogram>(name) ??
      new client.Histogram({ ...settings(name, help, labels), ...(buckets && { buckets: [...buckets] }) }),
  }
}

/** Puts a store's figures into a registry. Of several stores with one name the last one's gauges are reported. */
export function exposeFigures(client: PromClient, registry: Registry, store: string, figures: StoreFigures): void {
  exposeGauges(client, registry, store, figures)
  countFigures(client, registry, store, figures)
}

function typeOf({ type = 'gauge' }: StoreFigure): 'gauge' | 'counter' | 'histogram' {
  return type
}

/**
 * One gauge for each figure. prom-client collects every metric of a scrape at the same time, so the first one asks the
 * store and the others wait for the same answer.
 */
function exposeGauges(client: PromClient, registry: Registry, store: string, figures: StoreFigures): void {
  let reading: Promise<Readonly<Record<string, number>>> | undefined
  const readOnce = async () => {
    reading ??= figures.read?.().finally(() => {
      reading = undefined
    })
    return reading
  }
  for (const { name, help } of figures.list.filter((figure) => typeOf(figure) === 'gauge')) {
    registry.removeSingleMetric(name)
    const gauge: Gauge = new client.Gauge({
      name,
      help,
      labelNames: ['store'],
      registers: [registry],
      async collect() {
        const value = await readOnce().then(
          (read) => read?.[name],
          () => undefined,
        )
        if (value === undefined)
          gauge.reset() // nothing is better than an old figure
        else gauge.set({ store }, value)
      },
    })
  }
}

/** Which registries hear of which figures: several plugin instances on one store must not count everything twice. */
const hearing = new WeakMap<StoreFigures, WeakSet<Registry>>()

function countFigures(client: PromClient, registry: Registry, store: string, figures: StoreFigures): void {
  if (figures.listen === undefined) return
  const registries = hearing.get(figures) ?? new WeakSet()
  if (registries.has(registry)) return
  hearing.set(figures, registries.add(registry))
  const notes = new Map(figures.list.map((figure) => [figure.name, noteOf(client, registry, store, figure)]))
  figures.listen((name, value, labels) => notes.get(name)?.(value, labels))
}

type Note = (value: number, labels?: Parameters<FigureListener>[2]) => void

function noteOf(client: PromClient, registry: Registry, store: string, figure: StoreFigure): Note | undefined {
  const { name, help, labels = [], buckets } = figure
  const make = instruments(client, registry)
  switch (typeOf(figure)) {
    case 'counter': {
      const counter = make.counter(name, help, ...labels)
      if (labels.length === 0) counter.inc({ store }, 0) // visible before the first time
      return (value, values) => counter.inc({ store, ...values }, value)
    }
    case 'histogram': {
      const histogram = make.histogram(name, help, buckets, ...labels)
      return (value, values) => histogram.observe({ store, ...values }, value)
    }
    case 'gauge':
      return undefined
  }
}
