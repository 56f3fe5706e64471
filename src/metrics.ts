/** Prometheus metrics: a listener to the core's events, made of prom-client when it is installed. */

import type { Counter, Registry } from 'prom-client'
import { InvalidOptionError } from './errors.ts'
import { type ClaimOutcome, type IdempotencyEvent, type Listener, reasonOf } from './events.ts'
import { exposeFigures, instruments, type PromClient } from './figures.ts'
import type { MetricsRegistry } from './options.ts'
import { plainInstruments } from './plain-metrics.ts'
import type { IdempotencyStore } from './store.ts'

// Milliseconds. Memory and a near Redis answer below 1; alerts sit at 5 (Redis) and 25 (DynamoDB).
const DURATION_BUCKETS = [0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000]
const BYTES_BUCKETS = [128, 512, 1_024, 4_096, 16_384, 65_536, 262_144, 1_048_576]

/**
 * The listener that keeps the metrics of one plugin instance. Instances may share a registry.
 * @param choice a registry; false for none; undefined for the global registry, or none without prom-client
 * @throws InvalidOptionError when a registry was given but prom-client cannot be loaded
 */
export async function metricsListener(
  choice: MetricsRegistry | false | undefined,
  store: IdempotencyStore,
): Promise<Listener | undefined> {
  if (choice === false) return undefined
  const client = await loadPromClient()
  if (client !== undefined) return listenerOn(client, (choice as Registry | undefined) ?? client.register, store)
  if (choice === undefined) return undefined
  throw new InvalidOptionError('option "metrics" needs the package prom-client, which is not installed')
}

async function loadPromClient(): Promise<PromClient | undefined> {
  try {
    return await import('prom-client')
  } catch (error) {
    if ((error as { code?: string }).code === 'ERR_MODULE_NOT_FOUND') return undefined
    throw error
  }
}

function listenerOn(client: PromClient, registry: Registry, idempotencyStore: IdempotencyStore): Listener {
  const store = idempotencyStore.name
  const metrics = metricsOn(client, registry)
  metrics.storeInfo.set({ store, idempotency_store: idempotencyStore.constructor.name }, 1)
  beginAtZero(metrics, store)
  if (idempotencyStore.figures !== undefined) exposeFigures(client, registry, store, idempotencyStore.figures)
  const claims = claimSeries(metrics, store)
  const pending = metrics.pending.labels({ store })
  const completion = metrics.completion.labels({ store })
  const responseBytes = metrics.responseBytes.labels({ store })
  const countOf = (counter: Counter) => counter.inc({ store })

  return (event: IdempotencyEvent) => {
    switch (event.type) {
      case 'claim': {
        // A record without a body is a record found: the fixed outcomes have no word of their own for it.
        const outcome = event.outcome === 'not_replayable' ? 'replayed' : event.outcome
        const { count, duration } = claims[outcome]
        count.inc()
        duration.observe(event.durationMs)
        if (outcome === 'claimed' || outcome === 'taken_over') pending.inc()
        return
      }
      case 'completion':
        pending.dec()
        completion.observe(event.durationMs)
        if (event.isLate && event.isOwner) countOf(metrics.lateCompletions)
        if (event.outcome !== 'complete' || !event.isOwner) return
        if (event.isReplayable) responseBytes.observe(event.bytes)
        else countOf(metrics.notReplayable)
        return
      case 'lease-expired':
        return countOf(metrics.leaseExpired)
      case 'lease-lost':
        return countOf(metrics.leaseLost)
      case 'store-error':
        return metrics.storeErrors.inc({ store, operation: event.operation, reason: reasonOf(event.error) })
      case 'record-lost':
        pending.dec()
        return metrics.storeErrors.inc({ store, operation: 'complete', reason: 'given_up' })
      case 'unprotected':
        return countOf(metrics.unprotected)
    }
  }
}

type Metrics = ReturnType<typeof metricsOn>

const CLAIM_OUTCOMES = ['claimed', 'taken_over', 'replayed', 'in_progress', 'mismatch', 'uncertain', 'error'] as const

function claimSeries({ claims, registration }: Metrics, store: string) {
  const seriesOf = (outcome: ClaimOutcome) => ({
    count: claims.labels({ store, outcome }),
    duration: registration.labels({ store, outcome }),
  })
  const entries = CLAIM_OUTCOMES.map((outcome) => [outcome, seriesOf(outcome)])
  return Object.fromEntries(entries) as Record<(typeof CLAIM_OUTCOMES)[number], ReturnType<typeof seriesOf>>
}

// To Prometheus a counter that appears at 1 has not grown: a first takeover would go unseen. Plain ones appear at 0.
function beginAtZero(metrics: Metrics, store: string): void {
  const { leaseExpired, leaseLost, lateCompletions, unprotected, notReplayable } = metrics
  for (const metric of [leaseExpired, leaseLost, lateCompletions, unprotected, notReplayable]) metric.inc({ store }, 0)
}

function metricsOn(client: PromClient, registry: Registry) {
  const { counter, gauge } = instruments(client, registry)
  const plain = plainInstruments(registry)
  return {
    registration: plain.histogram(
      'idempotency_registration_duration_ms',
      'Time to claim a key or find its record. High: look at the store first.',
      DURATION_BUCKETS,
    ),
    completion: plain.histogram(
      'idempotency_completion_duration_ms',
      'Time to write the record before the response leaves. High: every first request is that much slower.',
      DURATION_BUCKETS,
    ),
    claims: plain.counter(
      'idempotency_claims_total',
      'Requests with a key, by what became of them. A sudden share of mismatch is a client that reuses keys.',
    ),
    leaseExpired: counter(
      'idempotency_lease_expired_total',
      'Claims whose owner stopped renewing. Look for crashed or blocked processes.',
    ),
    leaseLost: counter(
      'idempotency_lease_lost_total',
      'Handlers that outlived their lease. Another attempt may have run: check for double effects.',
    ),
    lateCompletions: counter(
      'idempotency_late_completions_total',
      'Records written after a timeout or past the lease. Raise leaseMs or speed up the handler.',
    ),
    storeErrors: counter(
      'idempotency_store_errors_total',
      'Store calls that failed or timed out. Look at the store and the network to it.',
      'operation',
      'reason',
    ),
    unprotected: counter(
      'idempotency_unprotected_total',
      'Requests that ran without protection because the store was down (onStoreError: proceed).',
    ),
    notReplayable: counter(
      'idempotency_not_replayable_total',
      'Responses recorded without their body. Raise maxResponseBytes, or stop hijacking the reply.',
    ),
    pending: plain.gauge('idempotency_pending', 'Claims of this process whose handler still runs.'),
    responseBytes: plain.histogram('idempotency_response_bytes', 'Size of recorded bodies.', BYTES_BUCKETS),
    storeInfo: gauge('idempotency_store_info', 'Always 1; says which store is in use.', 'idempotency_store'),
  }
}
