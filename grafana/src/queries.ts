/** The PromQL that the dashboards are made of. `$job`, `$instance` and `$store` are chosen at the top of each. */

const WINDOW = '$__rate_interval'

/** What narrows a query further. */
export interface Narrow {
  /** Further label matchers: `outcome="replayed"`. */
  readonly where?: string
  /** Which stores. @default '$store' */
  readonly store?: string
  /** How far each point looks back. @default '$__rate_interval' */
  readonly window?: string
}

/** The series of a metric, of the chosen jobs, instances and stores. */
export function series(metric: string, { where, store = '$store' }: Narrow = {}): string {
  const chosen = ['job=~"$job"', 'instance=~"$instance"', `store=~"${store}"`]
  return `${metric}{${[...chosen, ...(where === undefined ? [] : [where])].join(', ')}}`
}

/** A counter's growth per second, summed by labels. */
export function perSecond(metric: string, by: string, narrow?: Narrow): string {
  return `sum by (${by}) (rate(${series(metric, narrow)}[${narrow?.window ?? WINDOW}]))`
}

/**
 * How often something rare happened in the window. A counter that appears with its first event has not grown
 * as far as `increase` can tell, so what was not there a window ago counts from nothing.
 */
export function events(metric: string, by: string, narrow?: Narrow): string {
  const counted = series(metric, narrow)
  const window = narrow?.window ?? WINDOW
  return `sum by (${by}) ((${counted} unless ${counted} offset ${window}) or increase(${counted}[${window}]))`
}

/** A quantile of a histogram, by labels. */
export function quantile(q: number, metric: string, by: string, narrow?: Narrow): string {
  const window = narrow?.window ?? WINDOW
  return `histogram_quantile(${q}, sum by (${by}, le) (rate(${series(`${metric}_bucket`, narrow)}[${window}])))`
}

/** The share of claims that ended in some way, by store. */
export function shareOfClaims(where: string, narrow: Narrow = {}): string {
  const part = perSecond('idempotency_claims_total', 'store', { ...narrow, where })
  return orZero(`${part} / ${perSecond('idempotency_claims_total', 'store', narrow)}`, narrow)
}

/** 0 for each store in use of which the query knows nothing: an empty graph would not tell "none" from "not asked". */
export function orZero(query: string, { store }: Narrow = {}): string {
  const stores = series('idempotency_store_info', store === undefined ? {} : { store })
  return `${query} or on (store) 0 * max by (store) (${stores})`
}
