/** From one store to another: the same panel twice, side by side. */

import type { DashboardBuilder } from '@grafana/grafana-foundation-sdk/dashboard'
import { board, choice, STORES } from './board.ts'
import { lines, OUTCOME_COLORS, REPLAY_SHARE, timeseries } from './panels.ts'
import { events, type Narrow, orZero, perSecond, quantile, shareOfClaims } from './queries.ts'

const CLAIMS = 'idempotency_claims_total'
const SIDES = ['$from', '$to'] as const

/** Two stores by their label: the left one is left, the right one is taken into use. */
export function migration(): DashboardBuilder {
  const dashboard = board(
    'migration',
    'migration',
    'Two stores side by side: does the new one do what the old one did?',
  )
  dashboard.withVariable(choice('from', STORES, 'From').current({ text: 'redis', value: 'redis' }))
  dashboard.withVariable(choice('to', STORES, 'To').current({ text: 'dynamodb', value: 'dynamodb' }))
  dashboard.withPanel(share())
  for (const panelOf of [requests, replays, registration, trouble]) {
    for (const side of SIDES) dashboard.withPanel(panelOf({ store: side }))
  }
  return dashboard
}

function share() {
  const ofBoth = { store: '$from|$to' }
  return timeseries({
    title: 'Share of protected requests: from $from to $to',
    description:
      'How far the migration is. A retry finds its record only where it was made: keep the old store readable for ttlMs ' +
      'after the last request that it took.',
    queries: [
      {
        expr: `${perSecond(CLAIMS, 'store', ofBoth)} / on () group_left () sum(${perSecond(CLAIMS, 'store', ofBoth)})`,
        legend: '{{store}}',
      },
    ],
    unit: 'percentunit',
    width: 24,
    stacked: true,
  })
}

function requests(side: Narrow) {
  return timeseries({
    title: `${side.store}: requests by outcome`,
    description:
      'The shares should be alike on both sides. More mismatches or errors on one: stop, and look at its log.',
    queries: [{ expr: perSecond(CLAIMS, 'outcome', side), legend: '{{outcome}}' }],
    colors: OUTCOME_COLORS,
    unit: 'reqps',
    stacked: true,
  })
}

function replays(side: Narrow) {
  return timeseries({
    title: `${side.store}: replay rate`,
    description:
      'Lower on the new side at first: it has no records yet. Still lower after ttlMs: retries miss their record.',
    queries: [{ expr: shareOfClaims('outcome="replayed"', side), legend: '{{store}}' }],
    ...REPLAY_SHARE,
  })
}

function registration(side: Narrow) {
  const metric = 'idempotency_registration_duration_ms'
  return timeseries({
    title: `${side.store}: registration p50 and p99`,
    description:
      'Lines: 5 ms (Redis) and 25 ms (DynamoDB). Above the line of its kind: do not send it more traffic yet.',
    queries: [
      { expr: quantile(0.5, metric, 'store', side), legend: '{{store}} p50' },
      { expr: quantile(0.99, metric, 'store', side), legend: '{{store}} p99' },
    ],
    unit: 'ms',
    logarithmic: true,
    thresholds: lines([5, 'orange'], [25, 'red']),
  })
}

function trouble(side: Narrow) {
  const rare = (metric: string, where?: string) =>
    orZero(events(metric, 'store', { ...side, ...(where !== undefined && { where }) }), side)
  return timeseries({
    title: `${side.store}: takeovers, fail-open and errors`,
    description: 'Should be nothing on both sides. Any on the new one: go back, then look at its log.',
    queries: [
      { expr: rare(CLAIMS, 'outcome="taken_over"'), legend: 'taken over' },
      { expr: rare('idempotency_unprotected_total'), legend: 'fail-open' },
      { expr: rare('idempotency_store_errors_total'), legend: 'store errors' },
    ],
    unit: 'short',
  })
}
