/** One structured line through `request.log` for each event that an operator would look for. */

import { hash } from 'node:crypto'
import type { FastifyBaseLogger } from 'fastify'
import { type IdempotencyEvent, type Listener, reasonOf } from './events.ts'
import type { IdempotencyStore, StoreWarning } from './store.ts'

type Level = 'debug' | 'info' | 'warn' | 'error'
type Line = readonly [level: Level, message: string]

/** Writes the line of each event; a digest stands for the key, and neither credential nor body is ever written. */
export function logListener(store: IdempotencyStore): Listener {
  return (event) => {
    const { log } = event.request
    if (isSilent(log, 'error')) return
    const line = lineOf(event)
    if (line === undefined) return
    const [level, message] = line
    if (isSilent(log, level)) return
    log[level](fieldsOf(event, store.regionOf?.(event.scopedKey)), message)
  }
}

/** Writes what a store warns of, through the logger of the app: the store knows of no request. */
export function logWarning(log: FastifyBaseLogger, store: string, warning: StoreWarning): void {
  if (isSilent(log, 'warn')) return
  const { operation, scopedKey, message, fields } = warning
  log.warn({ operation, store, key_digest: keyDigest(scopedKey), ...fields }, `idempotency: ${message}`)
}

/** First 16 hex digits of the SHA-256 of a scoped key: enough to join log lines, useless to whoever reads them. */
export function keyDigest(scopedKey: string): string {
  return hash('sha256', scopedKey).slice(0, 16)
}

// Most requests only reach debug, and at the usual level neither digest nor object should be made for them.
function isSilent(log: FastifyBaseLogger, level: Level): boolean {
  if (log[level] === log.fatal) return true // without a logger Fastify has one empty function for all levels
  const { isLevelEnabled } = log as { isLevelEnabled?: (level: string) => boolean }
  return isLevelEnabled !== undefined && !isLevelEnabled.call(log, level)
}

function lineOf(event: IdempotencyEvent): Line | undefined {
  switch (event.type) {
    case 'claim':
      return claimLine(event.outcome)
    case 'completion':
      return completionLine(event)
    case 'lease-expired':
      return ['warn', 'idempotency: found a claim whose owner stopped renewing its lease']
    case 'lease-lost':
      return ['warn', 'idempotency: the lease was lost while the handler ran; another attempt may run']
    case 'store-error':
      return ['error', `idempotency: store operation ${event.operation} failed`]
    case 'record-lost':
      return ['error', 'idempotency: the response was sent but could not be recorded']
    case 'unprotected':
      return ['warn', 'idempotency: the store does not answer; the request runs unprotected']
  }
}

function claimLine(outcome: (IdempotencyEvent & { type: 'claim' })['outcome']): Line | undefined {
  switch (outcome) {
    case 'claimed':
      return ['debug', 'idempotency: claimed']
    case 'taken_over':
      return ['warn', 'idempotency: took over the claim of a vanished owner']
    case 'replayed':
      return ['info', 'idempotency: replayed']
    case 'in_progress':
      return ['info', 'idempotency: rejected, the first request is still running']
    case 'mismatch':
      return ['info', 'idempotency: rejected, the key was used for another request']
    case 'uncertain':
      return ['warn', 'idempotency: rejected, the outcome of an earlier attempt is unknown']
    case 'not_replayable':
      return ['info', 'idempotency: rejected, the response was not recorded']
    case 'error':
      return undefined // the store-error line says it
  }
}

function completionLine(event: IdempotencyEvent & { type: 'completion' }): Line {
  if (!event.isOwner) return ['warn', `idempotency: ${event.outcome} refused, another attempt owns the record`]
  if (event.isLate) return ['warn', `idempotency: late ${event.outcome}`]
  return ['debug', `idempotency: ${event.outcome}`]
}

function fieldsOf(event: IdempotencyEvent, region: string | undefined): object {
  const fields = {
    operation: 'operation' in event ? event.operation : event.type,
    idempotency_status: 'outcome' in event ? event.outcome : event.type,
    store: event.store,
    key_digest: keyDigest(event.scopedKey),
    ...(region !== undefined && { region }),
  }
  if ('durationMs' in event) return { ...fields, duration_ms: event.durationMs }
  if ('error' in event) {
    const { logFields } = (event.error ?? {}) as { logFields?: object }
    return { ...fields, ...logFields, reason: reasonOf(event.error), error: messageOf(event.error) }
  }
  return fields
}

/** The message alone: drivers hang the whole command on their errors, and with it the raw key. */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error)
}
