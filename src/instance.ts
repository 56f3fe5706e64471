/** What the plugin adds to Fastify's own objects, in values and in types. */

import type { FastifyInstance } from 'fastify'
import { InvalidOptionError } from './errors.ts'
import type { RouteIdempotencyOptions } from './options.ts'
import type { RequestIdempotency } from './request/context.ts'
import { giveBack } from './request/give-back.ts'
import { scopedKey } from './scoped-key.ts'
import type { IdempotencyRecord, IdempotencyStore } from './store.ts'

/** `app.idempotency`: for operators. */
export interface InstanceIdempotency {
  readonly store: IdempotencyStore
  /**
   * The scoped key of a caller's key on a route, to look its record up with.
   * @param credential what the `credential` option returns for the caller
   * @param routePattern with its prefix, parameters and constraints: `/payments/:id/refunds`, `/pay host=a.example`
   */
  scopedKey(credential: string, method: string, routePattern: string, key: string): string
  /** The live record of a scoped key; undefined when there is none. */
  read(scopedKey: string): Promise<IdempotencyRecord | undefined>
  /**
   * Frees a key whose attempt is pending or failed, so that the next request with it runs. For attempts that
   * `onLeaseExpired: 'reject'` holds back, once it is known what they did. False: nothing to free, or completed.
   */
  release(scopedKey: string): Promise<boolean>
}

declare module 'fastify' {
  interface FastifyInstance {
    idempotency: InstanceIdempotency
  }
  interface FastifyRequest {
    /** The request's key; null without one, and on routes that are not covered. */
    idempotency: RequestIdempotency | null
  }
  interface FastifyContextConfig {
    /** true or options: this route is covered; false: it is not. */
    idempotency?: boolean | RouteIdempotencyOptions
  }
}

/** @throws InvalidOptionError when the instance has been decorated before */
export function decorate(instance: FastifyInstance, store: IdempotencyStore, failedTtlMs: number): void {
  if (Object.hasOwn(instance, 'idempotency')) {
    throw new InvalidOptionError(
      'already registered on this instance; register it once, or once in each child instance',
    )
  }
  const value = instanceIdempotency(store, failedTtlMs)
  // Inside an instance that has the plugin, a child with a store of its own puts that in front of the inherited one.
  if (instance.hasDecorator('idempotency')) Object.defineProperty(instance, 'idempotency', { value })
  else instance.decorate('idempotency', value)
  if (!instance.hasRequestDecorator('idempotency')) instance.decorateRequest('idempotency', null)
}

function instanceIdempotency(store: IdempotencyStore, failedTtlMs: number): InstanceIdempotency {
  return {
    store,
    scopedKey: (credential, method, routePattern, key) => scopedKey(credential, `${method}:${routePattern}`, key),
    read: (key) => store.read(key),
    async release(key) {
      const record = await store.read(key)
      return record !== undefined && giveBack(store, record, failedTtlMs)
    },
  }
}
