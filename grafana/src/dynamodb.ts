/** The DynamoDB table behind the records: what it costs, what it refuses, how long it takes. */

import type { DashboardBuilder } from '@grafana/grafana-foundation-sdk/dashboard'
import { board, several } from './board.ts'
import { atMost, lines, stat, timeseries } from './panels.ts'
import { events, orZero, perSecond, quantile } from './queries.ts'

const UNITS = 'idempotency_dynamodb_consumed_capacity_units_total'
const THROTTLED = 'idempotency_dynamodb_throttled_total'
const REFUSED = 'idempotency_dynamodb_conditional_check_failed_total'
const DURATION = 'idempotency_dynamodb_request_duration_ms'
const BYTES = 'idempotency_dynamodb_item_bytes'

/** Consumed units by operation, throttles, failed conditions, sizes and durations. */
export function dynamodb(): DashboardBuilder {
  const dashboard = board('dynamodb', 'DynamoDB', 'What does the table cost, and does it take what it is given?')
  dashboard.withVariable(several('store', `label_values(${UNITS}{job=~"$job"}, store)`, 'Store'))
  for (const panel of [...figures(), ...capacity(), ...requests()]) dashboard.withPanel(panel)
  return dashboard
}

function figures() {
  return [
    stat({
      title: 'Units per protected request',
      description:
        'A first request takes a claim and a completion. Climbs: larger bodies, or many renewals (slow handlers).',
      queries: [
        {
          expr: `${perSecond(UNITS, '', { window: '5m' })} / ${perSecond('idempotency_claims_total', '', { window: '5m' })}`,
          legend: 'units',
        },
      ],
      unit: 'short',
      width: 8,
    }),
    stat({
      title: 'Throttled, 5 minutes',
      description:
        'Requests that DynamoDB refused for want of capacity. Any that last: raise capacity, or go on demand.',
      queries: [{ expr: `${events(THROTTLED, '', { window: '5m' })} or vector(0)`, legend: 'throttled' }],
      unit: 'short',
      width: 8,
      thresholds: atMost(1),
    }),
    stat({
      title: 'Expired but blocking, 1 hour',
      description:
        'Must be 0: a record past its time refused a request. See docs/runbooks/IdempotencyExpiredBlocked.md.',
      queries: [
        {
          expr: `${events('idempotency_expired_blocked_total', '', { window: '1h' })} or vector(0)`,
          legend: 'blocked',
        },
      ],
      unit: 'short',
      width: 8,
      thresholds: atMost(1),
    }),
  ]
}

function capacity() {
  return [
    timeseries({
      title: 'Consumed units per second, by operation',
      description:
        'What is paid for. claim and complete grow with requests; renew with slow handlers; read with replays.',
      queries: [{ expr: perSecond(UNITS, 'operation'), legend: '{{operation}}' }],
      unit: 'short',
      stacked: true,
    }),
    timeseries({
      title: 'Throttled, by operation',
      description:
        'Refused for want of capacity, or failed with a server error; the log has dynamo_error_code. The store backs off ' +
        'within its time; what does not fit becomes a 503. Lasts: raise the capacity of the table.',
      queries: [{ expr: orZero(events(THROTTLED, 'store, operation')), legend: '{{store}} {{operation}}' }],
      unit: 'short',
      thresholds: lines([1, 'orange']),
    }),
    timeseries({
      title: 'Condition failures per second, by operation',
      description:
        'claim: the key has a record, so a replay, a conflict or a mismatch; grows with retries and is no fault. ' +
        'Others: an owner that lost its claim; look at takeovers on the overview.',
      queries: [{ expr: perSecond(REFUSED, 'operation'), legend: '{{operation}}' }],
      unit: 'ops',
    }),
    timeseries({
      title: 'Item size p50 and p99 (lines: 300 and 400 KB)',
      description:
        'Each KB is a write unit, and 400 KB is the most an item can have: larger bodies are not recorded. Near the ' +
        'lines: answer with less, or with a link.',
      queries: [
        { expr: quantile(0.5, BYTES, 'store'), legend: '{{store}} p50' },
        { expr: quantile(0.99, BYTES, 'store'), legend: '{{store}} p99' },
      ],
      unit: 'bytes',
      logarithmic: true,
      thresholds: lines([300 * 1024, 'orange'], [400 * 1024, 'red']),
    }),
  ]
}

function requests() {
  return [
    timeseries({
      title: 'Request p50 and p99, by operation (line: 25 ms)',
      description:
        'Round trips to DynamoDB. All slow: network or region. One operation slow: throttling or large items.',
      queries: [
        { expr: quantile(0.5, DURATION, 'operation'), legend: '{{operation}} p50' },
        { expr: quantile(0.99, DURATION, 'operation'), legend: '{{operation}} p99' },
      ],
      unit: 'ms',
      logarithmic: true,
      thresholds: lines([25, 'red']),
    }),
    timeseries({
      title: 'Store errors by operation and reason',
      description: 'Calls that failed or timed out, after back-off. The reason is the name of the error at AWS.',
      queries: [
        {
          expr: orZero(events('idempotency_store_errors_total', 'store, operation, reason')),
          legend: '{{store}} {{operation}} {{reason}}',
        },
      ],
      unit: 'short',
    }),
  ]
}
