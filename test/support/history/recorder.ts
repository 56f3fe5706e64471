/** A store that writes down what is asked of it and what it answers. */

import type { IdempotencyStore } from '../../../src/store.ts'
import type { ClaimCall, History, Operation, ReadCall, WriteCall } from './history.ts'

/** A store as one app reaches it. */
export interface Link {
  readonly store: IdempotencyStore
  /** How often so far requests or replies were lost that the driver sends again by itself. */
  losses(): number
  /** Does an error say that the request has not left this process? Then it cannot come to pass. */
  isUnsent?(error: unknown): boolean
}

/** Owners whose renewals do not leave their process, as {@link ownerOf} names them. */
export type Paused = ReadonlySet<string>

export function ownerOf({ scopedKey, fence }: { readonly scopedKey: string; readonly fence: number }): string {
  return `${scopedKey} ${fence}`
}

/** The store of a link, recorded as that of an app. */
export function recorded(link: Link, app: number, { operations }: History, paused: Paused): IdempotencyStore {
  const { store } = link
  async function record<Call extends Operation>(
    what: Omit<Call, 'out' | 'app' | 't0' | 't1' | 'isResent'>,
    perform: () => Promise<Call['out']>,
  ): Promise<never> {
    const t0 = performance.now()
    const call = { ...what, app, t0, t1: Number.POSITIVE_INFINITY, isResent: false } as unknown as Call
    operations.push(call)
    const losses = link.losses()
    try {
      call.out = await perform()
      call.t1 = performance.now()
      return call.out as never
    } catch (error) {
      if (link.isUnsent?.(error)) operations.splice(operations.lastIndexOf(call), 1)
      throw error
    } finally {
      call.isResent = link.losses() > losses
    }
  }
  const write = ({ scopedKey: key, token, fence }: WriteTo, rest: WriteRest, perform: () => Promise<boolean>) =>
    record<WriteCall>({ key, token, fence, ...rest }, perform)
  return {
    name: store.name,
    claim: (request) => {
      const { scopedKey: key, token, fingerprint, leaseMs } = request
      return record<ClaimCall>({ op: 'claim', key, token, fence: 0, fingerprint, leaseMs }, () => store.claim(request))
    },
    complete: (claim, response, ttlMs) =>
      write(claim, { op: 'complete', response }, () => store.complete(claim, response, ttlMs)),
    fail: (claim, ttlMs) => write(claim, { op: 'fail' }, () => store.fail(claim, ttlMs)),
    renew: async (claim, leaseMs) => {
      if (paused.has(ownerOf(claim))) throw new Error('the owner stands still')
      return write(claim, { op: 'renew', leaseMs }, () => store.renew(claim, leaseMs))
    },
    release: (claim) => write(claim, { op: 'release' }, () => store.release(claim)),
    read: (key) => record<ReadCall>({ op: 'read', key, token: '', fence: 0 }, () => store.read(key)),
  }
}

type WriteTo = Parameters<IdempotencyStore['release']>[0]
type WriteRest = Pick<WriteCall, 'op' | 'response' | 'leaseMs'>
