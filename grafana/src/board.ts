/** What all dashboards have in common: uid, time range, links to each other, and the choices at the top. */

import {
  DashboardBuilder,
  DashboardCursorSync,
  DashboardLinkBuilder,
  DashboardLinkType,
  DatasourceVariableBuilder,
  QueryVariableBuilder,
  VariableRefresh,
  VariableSort,
} from '@grafana/grafana-foundation-sdk/dashboard'
import { DATASOURCE } from './panels.ts'

/** The uid of the data source in `grafana/provisioning`. */
export const PROVISIONED_DATASOURCE = 'idempotency-prometheus'

const TAG = 'idempotency'

/** A dashboard without panels, for the jobs and instances that are chosen at its top. */
export function board(name: string, title: string, description: string): DashboardBuilder {
  return new DashboardBuilder(`Idempotency: ${title}`)
    .uid(`idempotency-${name}`)
    .description(description)
    .tags([TAG])
    .timezone('browser')
    .time({ from: 'now-1h', to: 'now' })
    .refresh('10s')
    .tooltip(DashboardCursorSync.Crosshair)
    .link(
      new DashboardLinkBuilder('Idempotency')
        .type(DashboardLinkType.Dashboards)
        .tags([TAG])
        .includeVars(true)
        .keepTime(true),
    )
    .withVariable(
      new DatasourceVariableBuilder('datasource')
        .label('Data source')
        .type('prometheus')
        .current({ text: 'Prometheus', value: PROVISIONED_DATASOURCE }),
    )
    .withVariable(any('job', 'label_values(idempotency_store_info, job)', 'Job'))
    .withVariable(any('instance', 'label_values(idempotency_store_info{job=~"$job"}, instance)', 'Instance'))
}

/** The choice of some of the values that a query finds, at first all of them. */
export function several(name: string, query: string, label: string): QueryVariableBuilder {
  return choice(name, query, label).multi(true).includeAll(true).current({ text: 'All', value: '$__all' })
}

/** The choice of one of a label's values. */
export function choice(name: string, query: string, label: string): QueryVariableBuilder {
  return new QueryVariableBuilder(name)
    .label(label)
    .datasource(DATASOURCE)
    .query(query)
    .definition(query)
    .refresh(VariableRefresh.OnTimeRangeChanged)
    .sort(VariableSort.AlphabeticalAsc)
}

/** The choice of stores, at first all. */
export function stores(): QueryVariableBuilder {
  return any('store', STORES, 'Store')
}

/** As {@link several}; all are all that there will be, too. */
function any(name: string, query: string, label: string): QueryVariableBuilder {
  return several(name, query, label).allValue('.*')
}

/** The query for the names of the stores in use. */
export const STORES = 'label_values(idempotency_store_info{job=~"$job"}, store)'
