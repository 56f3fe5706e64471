/** Does deduplication work? The dashboard to look at first. */

import type { DashboardBuilder } from '@grafana/grafana-foundation-sdk/dashboard'
import { board, stores } from './board.ts'
import { atMost, lines, OUTCOME_COLORS, REPLAY_SHARE, stat, timeseries } from './panels.ts'
import { events, orZero, perSecond, quantile, series, shareOfClaims } from './queries.ts'

const CLAIMS = 'idempotency_claims_total'
const REPLAYED = 'outcome="replayed"'
const MISMATCH = 'outcome="mismatch"'
const RECENT = { window: '5m' }
const CONFLICT = 'outcome=~"in_progress|uncertain"'

/** Protected requests, replays, conflicts, mismatches, latency, takeovers and fail-open, of all stores. */
export function overview(): DashboardBuilder {
  const dashboard = board('overview', 'overview', 'Does deduplication work, is it fast, and what needs a look?')
  dashboard.withVariable(stores())
  for (const panel of [...figures(), ...requests(), ...latency(), ...trouble()]) dashboard.withPanel(panel)
  return dashboard
}

function figures() {
  const replayed = perSecond(CLAIMS, '', { ...RECENT, where: REPLAYED })
  return [
    stat({
      title: 'Firing alerts',
      description: 'Alerts of grafana/alerts that fire. Each has a page in docs/runbooks: open it and follow it.',
      queries: [
        { expr: 'sum(ALERTS{alertname=~"Idempotency.*", alertstate="firing"}) or vector(0)', legend: 'firing' },
      ],
      unit: 'short',
      thresholds: atMost(1),
    }),
    stat({
      title: 'Protected requests',
      description:
        'Requests with a key, per second. None while there is traffic: clients send no key, or no route is covered.',
      queries: [{ expr: perSecond(CLAIMS, '', RECENT), legend: 'protected' }],
      unit: 'reqps',
    }),
    stat({
      title: 'Replay rate, 5 minutes',
      description:
        'Share of protected requests that were answered from the record. 0.5 to 2 % is usual; see the graph below.',
      queries: [{ expr: `${replayed} / ${perSecond(CLAIMS, '', RECENT)} or vector(0)`, legend: 'replayed' }],
      unit: 'percentunit',
      thresholds: [
        { value: null, color: 'orange' },
        { value: 0.005, color: 'green' },
        { value: 0.02, color: 'orange' },
      ],
    }),
    stat({
      title: 'Running now',
      description: 'Claims whose handler still runs. Climbs and stays up: handlers hang; look for slow downstreams.',
      queries: [{ expr: `sum(${series('idempotency_pending')})`, legend: 'pending' }],
      unit: 'short',
    }),
  ]
}

function requests() {
  return [
    timeseries({
      title: 'Protected requests by outcome',
      description:
        'claimed: ran for the first time. replayed: a retry got the recorded answer. in_progress: the first one still ' +
        'ran (409). mismatch: the key was used for another request (422). taken_over: a worker died. error: the store ' +
        'did not answer. Anything but claimed and replayed that grows: go to its panel.',
      queries: [{ expr: perSecond(CLAIMS, 'outcome'), legend: '{{outcome}}' }],
      colors: OUTCOME_COLORS,
      unit: 'reqps',
      stacked: true,
    }),
    timeseries({
      title: 'Replay rate by store (healthy: 0.5–2 %)',
      description:
        'Above the band: clients retry a lot; look for timeouts and slow answers. Below it: retries come with new keys, ' +
        'or the records are gone; check that clients keep their key, that the credential is stable and that ttlMs ' +
        'outlives the retries.',
      queries: [{ expr: shareOfClaims(REPLAYED), legend: '{{store}}' }],
      ...REPLAY_SHARE,
    }),
    timeseries({
      title: 'Conflicts (409) by store',
      description:
        'Duplicates that came while the first request ran, or whose outcome is unknown. A steady share is clients that ' +
        'retry faster than the handler answers: make them honour Retry-After, or set onInProgress to wait.',
      queries: [{ expr: orZero(perSecond(CLAIMS, 'store', { where: CONFLICT })), legend: '{{store}}' }],
      unit: 'reqps',
    }),
    timeseries({
      title: 'Mismatch share (422) by store',
      description:
        'Keys that were used again for another request. Above the line (0.01 %) a client has a bug: find it by the log ' +
        'line "rejected, the key was used for another request"; nothing ran for these requests.',
      queries: [{ expr: shareOfClaims(MISMATCH), legend: '{{store}}' }],
      unit: 'percentunit',
      thresholds: lines([0.0001, 'red']),
    }),
  ]
}

function latency() {
  const p50AndP99 = (metric: string) => [
    { expr: quantile(0.5, metric, 'store'), legend: '{{store}} p50' },
    { expr: quantile(0.99, metric, 'store'), legend: '{{store}} p99' },
  ]
  return [
    timeseries({
      title: 'Registration p50 and p99 by store (Redis: 5 ms, DynamoDB: 25 ms)',
      description:
        'Time to claim a key or find its record; each protected request waits for it. p99 above the line of its store: ' +
        'look at the store and the network to it, then at CPU and event loop of the API.',
      queries: p50AndP99('idempotency_registration_duration_ms'),
      unit: 'ms',
      logarithmic: true,
      thresholds: lines([5, 'orange'], [25, 'red']),
    }),
    timeseries({
      title: 'Completion p50 and p99 by store',
      description:
        'Time to write the record before the answer leaves; each first request waits for it. High with registration: ' +
        'the store. High alone: large bodies; see the size of recorded bodies.',
      queries: p50AndP99('idempotency_completion_duration_ms'),
      unit: 'ms',
      logarithmic: true,
    }),
  ]
}

function trouble() {
  const rare = (metric: string, where?: string) => orZero(events(metric, 'store', where === undefined ? {} : { where }))
  return [
    timeseries({
      title: 'Takeovers and lost leases by store',
      description:
        'taken over: the worker of a running request died, and its retry ran again. lease lost: a handler outlived its ' +
        'lease, so two may have run. late: recorded after the lease or a timeout. Any of the first two: look for crashed ' +
        'or blocked workers, and check for double effects (docs/runbooks/IdempotencyTakeovers.md).',
      queries: [
        { expr: rare(CLAIMS, 'outcome="taken_over"'), legend: '{{store}} taken over' },
        { expr: rare('idempotency_lease_lost_total'), legend: '{{store}} lease lost' },
        { expr: rare('idempotency_late_completions_total'), legend: '{{store}} late' },
      ],
      unit: 'short',
    }),
    timeseries({
      title: 'Fail-open by store',
      description:
        'Requests that ran without protection because the store was down (onStoreError: proceed). Any: mend the store, ' +
        'then reconcile the requests of that time by their log lines.',
      queries: [{ expr: rare('idempotency_unprotected_total'), legend: '{{store}}' }],
      unit: 'short',
      thresholds: lines([1, 'red']),
    }),
    timeseries({
      title: 'Store errors by operation and reason',
      description:
        'Store calls that failed or timed out. claim: requests got 503. complete with given_up: a client has its answer ' +
        'and the store has no record, so a retry would run again. Look at the store and the network to it.',
      queries: [
        {
          expr: orZero(events('idempotency_store_errors_total', 'store, operation, reason')),
          legend: '{{store}} {{operation}} {{reason}}',
        },
      ],
      unit: 'short',
    }),
    timeseries({
      title: 'Size of recorded bodies, and bodies not recorded',
      description:
        'p99 of what is stored per response. not replayable: the retry gets 409 instead of the answer; raise ' +
        'maxResponseBytes or stop hijacking the reply.',
      queries: [
        { expr: quantile(0.99, 'idempotency_response_bytes', 'store'), legend: '{{store}} p99 bytes' },
        { expr: rare('idempotency_not_replayable_total'), legend: '{{store}} not replayable' },
      ],
      unit: 'short',
    }),
    timeseries({
      title: 'Processes by store',
      description: 'How many processes use which store. Two stores at once outside of a migration: a wrong deployment.',
      queries: [
        {
          expr: `sum by (store, idempotency_store) (${series('idempotency_store_info')})`,
          legend: '{{store}} ({{idempotency_store}})',
        },
      ],
      unit: 'short',
      width: 24,
    }),
  ]
}
