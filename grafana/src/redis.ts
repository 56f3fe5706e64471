/** The Redis behind the records: memory, evictions, load. */

import type { DashboardBuilder } from '@grafana/grafana-foundation-sdk/dashboard'
import { board, several } from './board.ts'
import { atMost, lines, stat, timeseries } from './panels.ts'
import { events, orZero, quantile, series } from './queries.ts'

const MEMORY = 'redis_used_memory_rss_bytes'
const MAX = 'redis_maxmemory_bytes'
const EVICTED = 'redis_evicted_keys_total'

/** Each process of the API reports the figures of its Redis, so of one Redis the largest counts and not the sum. */
const largest = (expr: string) => `max by (store) (${expr})`

/** Memory against its limit, evictions and commands; with redis_exporter also clients, keys and commands by name. */
export function redis(): DashboardBuilder {
  const dashboard = board('redis', 'Redis', 'Is there room for the records, and does Redis keep what it was given?')
  dashboard.withVariable(several('store', 'label_values(redis_maxmemory_bytes{job=~"$job"}, store)', 'Store'))
  for (const panel of [...figures(), ...memory(), ...latency(), ...exporter()]) dashboard.withPanel(panel)
  return dashboard
}

function figures() {
  return [
    stat({
      title: 'Memory used of maxmemory',
      description: 'Above 80 %: add memory, or lower ttlMs, before Redis refuses writes and requests get 503.',
      queries: [{ expr: largest(`${series(MEMORY)} / (${series(MAX)} > 0)`), legend: '{{store}}' }],
      unit: 'percentunit',
      width: 8,
      thresholds: atMost(0.8),
    }),
    stat({
      title: 'Keys evicted since Redis started',
      description:
        'Must be 0: each was a record, and its retry runs again. Set maxmemory-policy noeviction, add memory.',
      queries: [{ expr: largest(series(EVICTED)), legend: '{{store}}' }],
      unit: 'short',
      width: 8,
      thresholds: atMost(1),
    }),
    stat({
      title: 'Commands per second',
      description: 'Of all clients of this Redis. Far more than protected requests: somebody else uses it.',
      queries: [{ expr: largest(series('redis_instantaneous_ops_per_sec')), legend: '{{store}}' }],
      unit: 'ops',
      width: 8,
    }),
  ]
}

function memory() {
  return [
    timeseries({
      title: 'Memory against its limit',
      description:
        'Used memory, its limit, and 80 % of the limit. Climbs without end: ttlMs × requests × bytes per record is more ' +
        'than there is; docs/stores/redis.md has the arithmetic. A limit of 0 is none: set one.',
      queries: [
        { expr: largest(series(MEMORY)), legend: '{{store}} used' },
        { expr: largest(series(MAX)), legend: '{{store}} maxmemory' },
        { expr: `0.8 * ${largest(series(MAX))}`, legend: '{{store}} 80 %' },
      ],
      unit: 'bytes',
    }),
    timeseries({
      title: 'Evictions',
      description:
        'Keys that Redis forgot for lack of memory. Any is a record lost: see docs/runbooks/IdempotencyRedisEvictions.md.',
      queries: [{ expr: largest(`increase(${series(EVICTED)}[$__rate_interval])`), legend: '{{store}}' }],
      unit: 'short',
      thresholds: lines([1, 'red']),
    }),
    timeseries({
      title: 'Commands per second',
      description:
        'One for a new claim, one for its completion, one for a replay. A jump without requests: look for scans.',
      queries: [{ expr: largest(series('redis_instantaneous_ops_per_sec')), legend: '{{store}}' }],
      unit: 'ops',
    }),
  ]
}

function latency() {
  return [
    timeseries({
      title: 'Registration p50 and p99 (line: 5 ms)',
      description: 'Above the line: slow commands of others, a busy core, WAIT on a slow replica, or the network.',
      queries: [
        { expr: quantile(0.5, 'idempotency_registration_duration_ms', 'store'), legend: '{{store}} p50' },
        { expr: quantile(0.99, 'idempotency_registration_duration_ms', 'store'), legend: '{{store}} p99' },
      ],
      unit: 'ms',
      logarithmic: true,
      thresholds: lines([5, 'red']),
    }),
    timeseries({
      title: 'Store errors by operation and reason',
      description:
        'Calls that failed or timed out. OOM in the log: out of memory. ECONNREFUSED: not there, or failing over.',
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

function exporter() {
  return [
    timeseries({
      title: 'Connected clients (redis_exporter)',
      description: 'One or two for each process of the API. Climbs without deployments: connections leak.',
      queries: [{ expr: 'sum by (instance) (redis_connected_clients)', legend: '{{instance}}' }],
      unit: 'short',
    }),
    timeseries({
      title: 'Commands by name (redis_exporter)',
      description: 'SET claims and replays, EVALSHA completes and renews, INFO is the scrape. Others: who sends them?',
      queries: [{ expr: 'topk(8, sum by (cmd) (rate(redis_commands_total[$__rate_interval])))', legend: '{{cmd}}' }],
      unit: 'ops',
      stacked: true,
    }),
    timeseries({
      title: 'Keys (redis_exporter)',
      description:
        'About protected requests per second × ttlMs / 1000. Falls without restarts or a lower ttlMs: evictions.',
      queries: [{ expr: 'sum by (instance, db) (redis_db_keys)', legend: '{{instance}} {{db}}' }],
      unit: 'short',
    }),
  ]
}
