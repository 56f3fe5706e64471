/** Stores that break one promise each, and the rule that must see it in what apps and clients do. */

import type { IdempotencyRecord, IdempotencyStore } from '../../../src/store.ts'
import { BROKEN_STORES, MapStore } from '../broken-stores.ts'

/** A store that keeps its promises, or not, on the real clock. */
export interface Mutant {
  readonly create: () => IdempotencyStore
  /** One of the checker's rules. */
  readonly seenAs: string
}

/** By what is wrong with them. */
export const MUTANTS: Readonly<Record<string, Mutant>> = {
  'a store that does not recognise its own token': {
    create: () => broken('its own token is not recognised'),
    seenAs: 'a claim was told that it lost to itself',
  },
  'a store that takes the completion of an owner who was overtaken': {
    create: () => broken('complete does not compare the token'),
    seenAs: 'a write was accepted of an owner whom another had overtaken',
  },
  'a store whose release deletes whatever is there': {
    create: () => broken('release does not compare the token'),
    seenAs: 'two owners at the same time',
  },
  'a store that reads, then writes': {
    create: () => broken('get, then set'),
    seenAs: 'two owners at the same time',
  },
  'a store that takes over a claim whose lease still runs': {
    create: () => onRealClock(new Impatient()),
    seenAs: 'two owners at the same time',
  },
  'a store that keeps a claim longer than its lease': {
    create: () => broken('a claim has the ttl of the response'),
    seenAs: 'in progress, though nobody could hold the key',
  },
  'a store whose renewals do not extend the lease': {
    create: () => broken('renew does not extend the lease'),
    seenAs: 'two owners at the same time',
  },
  'a store that refuses a late completion though nobody has taken over': {
    create: () => broken('a late completion is refused'),
    seenAs: 'no order of the calls explains their answers',
  },
  'a store whose fence starts anew': {
    create: () => onRealClock(new Forgetful()),
    seenAs: 'a fence was given twice, or did not grow',
  },
  'a store that replays another body': {
    create: () => onRealClock(new Careless()),
    seenAs: 'a record shows another response than was completed',
  },
}

class Impatient extends MapStore {
  protected override takeOverReason(...[row, request]: Parameters<MapStore['takeOverReason']>) {
    return super.takeOverReason({ ...row, leaseUntil: 0 }, request)
  }
}

class Forgetful extends MapStore {
  protected override nextFence(): number {
    return 1
  }
}

class Careless extends MapStore {
  protected override recordOf(row: Parameters<MapStore['recordOf']>[0]): IdempotencyRecord {
    const record = super.recordOf(row)
    if (record.response === undefined) return record
    return { ...record, response: { ...record.response, body: `${record.response.body} ` } }
  }
}

function broken(how: string): IdempotencyStore {
  const store = BROKEN_STORES[how]
  if (store === undefined) throw new Error(`there is no broken store by the name of "${how}"`)
  return onRealClock(store.create())
}

function onRealClock(store: MapStore): IdempotencyStore {
  return Object.defineProperty(store, 'now', { get: () => performance.now() })
}
