/** A covered route: its options, and what is worked out once for all its requests. */

import type { FastifyInstance, FastifyReply, FastifyRequest, RouteOptions } from 'fastify'
import type { DelayQueue } from '../delay-queue.ts'
import type { ResolvedRouteOptions } from '../options.ts'
import type { Runtime } from '../runtime.ts'
import { IgnoredFields } from './fingerprint.ts'
import type { OwnedClaim } from './owned-claim.ts'

export interface CoveredRoute {
  readonly runtime: Runtime
  readonly options: ResolvedRouteOptions
  /** Route pattern with its prefix, and constraints where it has any: `/payments/:id/refunds`, `/pay host=a.example`. */
  readonly pattern: string
  /** Milliseconds; 0 when Fastify does not time this route's handler. */
  readonly handlerTimeout: number
  readonly ignoredFields: IgnoredFields | undefined
  /** Where this route's claims wait for their next renewal. */
  readonly renewals: DelayQueue<OwnedClaim>
}

// Two routes that only a constraint tells apart (a host for each tenant) must not share a key.
function suffixOf(constraints: RouteOptions['constraints'] = {}): string {
  const parts = Object.entries(constraints).map(([name, value]) => ` ${name}=${String(value)}`)
  return parts.sort().join('')
}

// Set for all routes at once; Fastify's types do not list it.
interface ServerTimeout {
  readonly handlerTimeout?: number
}

export function coveredRoute(
  instance: FastifyInstance,
  runtime: Runtime,
  options: ResolvedRouteOptions,
  { url, handlerTimeout, constraints }: RouteOptions,
): CoveredRoute {
  return Object.freeze({
    runtime,
    options,
    pattern: url + suffixOf(constraints),
    handlerTimeout: handlerTimeout ?? (instance.initialConfig as ServerTimeout).handlerTimeout ?? 0,
    ignoredFields: options.ignoreFields.length === 0 ? undefined : new IgnoredFields(options.ignoreFields),
    renewals: runtime.renewals(options.leaseMs),
  })
}

/** What of a route's settings is allowed but not safe, as sentences to warn with. */
export function unsafeSettings({ options, handlerTimeout }: CoveredRoute): string[] {
  const { leaseMs, storeTimeoutMs, ttlMs } = options
  const warnings: string[] = []
  if (leaseMs <= storeTimeoutMs) {
    warnings.push(
      `leaseMs (${leaseMs}) is not longer than storeTimeoutMs (${storeTimeoutMs}); one slow store call can lose the lease`,
    )
  }
  if (leaseMs < handlerTimeout) {
    warnings.push(
      `leaseMs (${leaseMs}) is shorter than handlerTimeout (${handlerTimeout}); handlers then rely on every renewal`,
    )
  }
  if (ttlMs < leaseMs) {
    warnings.push(
      `ttlMs (${ttlMs}) is shorter than leaseMs (${leaseMs}); responses are forgotten while retries still come`,
    )
  }
  return warnings
}

/** Has somebody else answered meanwhile: Fastify's `handlerTimeout`, while the store was asked? */
export function isAnswered({ handlerTimeout }: CoveredRoute, request: FastifyRequest, reply: FastifyReply): boolean {
  if (reply.sent) return true
  return handlerTimeout > 0 && isHandlerTimeout(request.signal.reason) // without a timeout, reading `signal` makes one
}

export function isHandlerTimeout(error: unknown): boolean {
  return (error as { code?: unknown } | undefined)?.code === 'FST_ERR_HANDLER_TIMEOUT'
}
