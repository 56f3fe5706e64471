/** One correct store and many that break one law each, as stores in the wild do. The suite must tell them apart. */

import { setTimeout as sleep } from 'node:timers/promises'
import { assertDuration } from '../../src/errors.ts'
import { decodeResponse, encodeResponse, type StoredResponse } from '../../src/response.ts'
import type { Claim, ClaimRequest, ClaimResult, IdempotencyRecord, IdempotencyStore } from '../../src/store.ts'

type Write = 'complete' | 'fail' | 'renew' | 'release'

interface Row extends Claim {
  version: number
  state: IdempotencyRecord['state']
  leaseUntil: number
  expiresAt: number
  response?: StoredResponse
}

const VERSION = 1
const MAY_REPEAT = { complete: 'completed', fail: 'failed', renew: 'pending', release: 'failed' } as const

/** The correct one: a Map, and a clock that the suite moves. Each step that can go wrong is a method. */
export class MapStore implements IdempotencyStore {
  readonly name = 'map'
  now = 0
  trips = 0
  protected readonly rows = new Map<string, Row>()

  async claim(request: ClaimRequest): Promise<ClaimResult> {
    this.assertDuration('leaseMs', request.leaseMs)
    this.assertDuration('ttlMs', request.ttlMs)
    this.trips++
    return this.decide(request, this.live(request.scopedKey))
  }

  async complete(claim: Claim, response: StoredResponse, ttlMs: number): Promise<boolean> {
    this.assertDuration('ttlMs', ttlMs)
    this.trips++
    const row = this.writable('complete', claim)
    if (row === undefined) return false
    Object.assign(row, { state: 'completed', response: this.kept(response), expiresAt: this.now + ttlMs })
    return true
  }

  async fail(claim: Claim, ttlMs: number): Promise<boolean> {
    this.assertDuration('ttlMs', ttlMs)
    const row = this.writable('fail', claim)
    if (row === undefined) return false
    Object.assign(row, { state: 'failed', expiresAt: this.now + ttlMs })
    return true
  }

  async renew(claim: Claim, leaseMs: number): Promise<boolean> {
    this.assertDuration('leaseMs', leaseMs)
    const row = this.writable('renew', claim)
    if (row === undefined) return false
    row.state = 'pending'
    row.leaseUntil = this.renewedUntil(row, leaseMs)
    row.expiresAt = Math.max(row.expiresAt, row.leaseUntil)
    return true
  }

  async release(claim: Claim): Promise<boolean> {
    return this.writable('release', claim) !== undefined && this.rows.delete(this.keyOf(claim.scopedKey))
  }

  async read(scopedKey: string): Promise<IdempotencyRecord | undefined> {
    const row = this.live(scopedKey)
    return row && this.recordOf(row)
  }

  plantUnknownVersion(scopedKey: string): void {
    const claim = { scopedKey, fingerprint: 'future', token: 'future', fence: 1 }
    this.rows.set(scopedKey, { ...claim, version: 99, state: 'pending', leaseUntil: this.now, expiresAt: Infinity })
  }

  protected assertDuration(name: string, ms: number): void {
    assertDuration(name, ms)
  }

  protected keyOf(scopedKey: string): string {
    return scopedKey
  }

  protected live(scopedKey: string): Row | undefined {
    const row = this.rows.get(this.keyOf(scopedKey))
    if (row === undefined || this.isExpired(row)) return undefined
    this.assertVersion(row)
    return row
  }

  protected isExpired(row: Row): boolean {
    return row.expiresAt <= this.now
  }

  protected assertVersion({ version }: Row): void {
    if (version !== VERSION) throw new Error(`unknown version ${version} of a record`)
  }

  protected decide(request: ClaimRequest, row: Row | undefined): ClaimResult {
    if (row === undefined) return { outcome: 'claimed', claim: this.own(request, undefined), takenOver: 'no' }
    if (this.isOwn(row, request)) return { outcome: 'claimed', claim: claimOf(row), takenOver: 'no' }
    const takenOver = this.takeOverReason(row, request)
    if (takenOver === undefined) return this.exists(row)
    return { outcome: 'claimed', claim: this.own(request, row), takenOver }
  }

  protected exists(row: Row): ClaimResult {
    return { outcome: 'exists', record: this.recordOf(row) }
  }

  protected isOwn(row: Row, request: ClaimRequest): boolean {
    return row.token === request.token
  }

  protected takeOverReason(row: Row, request: ClaimRequest): 'failed' | 'expired' | undefined {
    if (row.fingerprint !== request.fingerprint) return undefined
    if (row.state === 'failed') return 'failed'
    const isLapsed = row.state === 'pending' && row.leaseUntil <= this.now
    return isLapsed && request.takeOverExpired ? 'expired' : undefined
  }

  protected own(request: ClaimRequest, row: Row | undefined): Claim {
    const { scopedKey, fingerprint, token } = request
    const claim = { scopedKey, fingerprint, token, fence: this.nextFence(row) }
    const leaseUntil = this.leasedUntil(request)
    const expiresAt = this.now + request.ttlMs
    this.rows.set(this.keyOf(scopedKey), { ...claim, version: VERSION, state: 'pending', leaseUntil, expiresAt })
    return claim
  }

  protected leasedUntil({ leaseMs }: ClaimRequest): number {
    return this.now + leaseMs
  }

  protected renewedUntil(_row: Row, leaseMs: number): number {
    return this.now + leaseMs
  }

  protected nextFence(row: Row | undefined): number {
    return (row?.fence ?? 0) + 1
  }

  protected writable(write: Write, claim: Claim): Row | undefined {
    const row = this.live(claim.scopedKey)
    return row !== undefined && this.mayWrite(write, row, claim) ? row : undefined
  }

  protected mayWrite(write: Write, row: Row, claim: Claim): boolean {
    const fence = write === 'release' ? Math.max(1, claim.fence) : claim.fence
    if (row.token !== claim.token || row.fence > fence) return false
    return row.state === 'pending' || row.state === MAY_REPEAT[write]
  }

  /** What is kept of a response, and also what is given of one that was kept. */
  protected kept(response: StoredResponse): StoredResponse {
    return decodeResponse(encodeResponse(response))
  }

  protected recordOf(row: Row): IdempotencyRecord {
    const leaseRemainingMs = row.state === 'pending' ? Math.max(0, row.leaseUntil - this.now) : 0
    const record = { ...claimOf(row), state: row.state, leaseRemainingMs }
    return row.response === undefined ? record : { ...record, response: this.kept(row.response) }
  }
}

function claimOf({ scopedKey, fingerprint, token, fence }: Row): Claim {
  return { scopedKey, fingerprint, token, fence }
}

/** A store that breaks a law, and a part of the name of each test that must see it. */
export interface BrokenStore {
  readonly create: () => MapStore
  readonly seenBy: readonly string[]
}

/** By what is wrong with them. */
export const BROKEN_STORES: Readonly<Record<string, BrokenStore>> = {
  'complete does not compare the token': {
    create: () =>
      new (class extends MapStore {
        protected override mayWrite(write: Write, row: Row, claim: Claim): boolean {
          return write === 'complete' || super.mayWrite(write, row, claim)
        }
      })(),
    seenBy: ['complete by a token after a takeover returns false', 'complete by a token that was never claimed with'],
  },
  'release does not compare the token': {
    create: () =>
      new (class extends MapStore {
        protected override mayWrite(write: Write, row: Row, claim: Claim): boolean {
          return write === 'release' || super.mayWrite(write, row, claim)
        }
      })(),
    seenBy: ['release by a token after a takeover returns false', 'release of a completed record by its own token'],
  },
  'ownership is by fingerprint': {
    create: () =>
      new (class extends MapStore {
        protected override mayWrite(write: Write, row: Row, claim: Claim): boolean {
          return super.mayWrite(write, row, row.fingerprint === claim.fingerprint ? row : claim)
        }
      })(),
    seenBy: ['renew by a token after a takeover returns false', 'fail by a token after a takeover returns false'],
  },
  'ownership is by token alone': {
    create: () =>
      new (class extends MapStore {
        protected override mayWrite(write: Write, row: Row, claim: Claim): boolean {
          return super.mayWrite(write, row, { ...claim, fence: row.fence })
        }
      })(),
    seenBy: ['complete', 'fail', 'renew', 'release'].map(
      (write) => `${write} by a token after a takeover, when a copy of its claim has come late returns false`,
    ),
  },
  'a release with fence 0 is taken for the owner': {
    create: () =>
      new (class extends MapStore {
        protected override mayWrite(write: Write, row: Row, claim: Claim): boolean {
          return super.mayWrite(write, row, claim.fence === 0 ? { ...claim, fence: row.fence } : claim)
        }
      })(),
    seenBy: ['a release with fence 0 does not forget a key that was taken over'],
  },
  'a release with fence 0 is refused': {
    create: () =>
      new (class extends MapStore {
        protected override mayWrite(write: Write, row: Row, claim: Claim): boolean {
          return claim.fence > 0 && super.mayWrite(write, row, claim)
        }
      })(),
    seenBy: ['a release with fence 0 frees a key that was claimed for the first time'],
  },
  'its own token is not recognised': {
    create: () =>
      new (class extends MapStore {
        protected override isOwn(): boolean {
          return false
        }
      })(),
    seenBy: ['a claim sent again recognises its own token', 'a takeover sent again recognises its own token'],
  },
  'its own failed record is taken over by a claim that arrives again': {
    create: () =>
      new (class extends MapStore {
        protected override isOwn(row: Row, request: ClaimRequest): boolean {
          return row.state === 'pending' && super.isOwn(row, request)
        }
      })(),
    seenBy: ['a claim that arrives again after its own failure leaves the record as it stands'],
  },
  'get, then set': {
    create: () =>
      new (class extends MapStore {
        override async claim(request: ClaimRequest): Promise<ClaimResult> {
          const row = this.live(request.scopedKey)
          await sleep(1)
          this.assertDuration('leaseMs', request.leaseMs)
          this.assertDuration('ttlMs', request.ttlMs)
          this.trips++
          return this.decide(request, row)
        }
      })(),
    seenBy: ['of 64 claims sent at once exactly one is claimed', 'nobody is claimed while somebody else holds the key'],
  },
  'completions check, then write': {
    create: () =>
      new (class extends MapStore {
        override async complete(claim: Claim, response: StoredResponse, ttlMs: number): Promise<boolean> {
          this.assertDuration('ttlMs', ttlMs)
          this.trips++
          if (this.writable('complete', claim) === undefined) return false
          await sleep(1)
          const expiresAt = this.now + ttlMs
          this.rows.set(claim.scopedKey, {
            ...claim,
            version: VERSION,
            state: 'completed',
            leaseUntil: 0,
            expiresAt,
            response: this.kept(response),
          })
          return true
        }
      })(),
    seenBy: ['a late completion and a takeover at the same time'],
  },
  'a claim has the ttl of the response': {
    create: () =>
      new (class extends MapStore {
        protected override leasedUntil({ ttlMs }: ClaimRequest): number {
          return this.now + ttlMs
        }
      })(),
    seenBy: ['a pending record whose lease has run out is taken over', 'the lease that is left, as others are told'],
  },
  'renew does not extend the lease': {
    create: () =>
      new (class extends MapStore {
        protected override renewedUntil(row: Row): number {
          return row.leaseUntil
        }
      })(),
    seenBy: ['renew restarts the lease from now'],
  },
  'renew adds to the lease that is left': {
    create: () =>
      new (class extends MapStore {
        protected override renewedUntil(row: Row, leaseMs: number): number {
          return row.leaseUntil + leaseMs
        }
      })(),
    seenBy: ['renew restarts the lease from now'],
  },
  'renew revives a completed record': {
    create: () =>
      new (class extends MapStore {
        protected override mayWrite(write: Write, row: Row, claim: Claim): boolean {
          return super.mayWrite(write, row, claim) || (write === 'renew' && row.token === claim.token)
        }
      })(),
    seenBy: ['renew of a completed record by its own token is false', 'renew of a failed record by its own token'],
  },
  'a failed record blocks until its ttl': {
    create: () =>
      new (class extends MapStore {
        protected override takeOverReason(row: Row, request: ClaimRequest): 'failed' | 'expired' | undefined {
          return row.state === 'failed' ? undefined : super.takeOverReason(row, request)
        }
      })(),
    seenBy: ['a failed record is taken over at once', 'after every failure one of 32 claims takes over'],
  },
  'takes over in spite of another fingerprint': {
    create: () =>
      new (class extends MapStore {
        protected override takeOverReason(row: Row, request: ClaimRequest): 'failed' | 'expired' | undefined {
          return super.takeOverReason({ ...row, fingerprint: request.fingerprint }, request)
        }
      })(),
    seenBy: [
      'another fingerprint does not take over a failed record',
      'another fingerprint does not take over a pending record whose lease has run out',
    ],
  },
  'takes over when it was asked not to': {
    create: () =>
      new (class extends MapStore {
        protected override takeOverReason(row: Row, request: ClaimRequest): 'failed' | 'expired' | undefined {
          return super.takeOverReason(row, { ...request, takeOverExpired: true })
        }
      })(),
    seenBy: ['with takeOverExpired false a lease that has run out is left alone'],
  },
  'the fence does not grow': {
    create: () =>
      new (class extends MapStore {
        protected override nextFence(row: Row | undefined): number {
          return row?.fence ?? 1
        }
      })(),
    seenBy: ['the fence grows by one with every takeover', 'in every lease one of 32 claims takes over'],
  },
  'a late completion is refused': {
    create: () =>
      new (class extends MapStore {
        protected override mayWrite(write: Write, row: Row, claim: Claim): boolean {
          return super.mayWrite(write, row, claim) && (row.state !== 'pending' || row.leaseUntil > this.now)
        }
      })(),
    seenBy: ['a late completion that nobody took over is accepted', 'a late renewal that nobody took over'],
  },
  'a completion sent again is refused': {
    create: () =>
      new (class extends MapStore {
        protected override mayWrite(write: Write, row: Row, claim: Claim): boolean {
          return super.mayWrite(write, row, claim) && row.state === 'pending'
        }
      })(),
    seenBy: ['complete sent twice by the same token', 'fail sent twice by the same token'],
  },
  'expired records still answer': {
    create: () =>
      new (class extends MapStore {
        protected override isExpired(): boolean {
          return false
        }
      })(),
    seenBy: [
      'a pending record past its ttl is absent',
      'a completed record past its ttl is absent',
      'a failed record past its ttl is absent',
    ],
  },
  'records end by a timer': {
    create: () =>
      new (class extends MapStore {
        override async complete(claim: Claim, response: StoredResponse, ttlMs: number): Promise<boolean> {
          setTimeout(() => this.rows.delete(claim.scopedKey), ttlMs).unref()
          return super.complete(claim, response, ttlMs)
        }
      })(),
    seenBy: ['a completed record with a ttl of 10 years is live'],
  },
  'any duration is taken': {
    create: () =>
      new (class extends MapStore {
        protected override assertDuration(): void {}
      })(),
    seenBy: ['a duration of 0 ms', 'a duration of -1 ms', 'a duration of 1.5 ms', 'a duration of NaN ms'],
  },
  'bodies are text': {
    create: () =>
      new (class extends MapStore {
        protected override kept(response: StoredResponse): StoredResponse {
          return { ...super.kept(response), body: response.body === null ? null : response.body.toString() }
        }
      })(),
    seenBy: ['binary with all 256 bytes', 'bytes that look like text stay a Buffer'],
  },
  'text goes through latin1': {
    create: () =>
      new (class extends MapStore {
        protected override kept(response: StoredResponse): StoredResponse {
          const { body } = response
          const isText = typeof body === 'string'
          return { ...super.kept(response), body: isText ? Buffer.from(body).toString('latin1') : body }
        }
      })(),
    seenBy: ['text beyond ASCII', 'what a reader does to a response'],
  },
  'an empty body is no body': {
    create: () =>
      new (class extends MapStore {
        protected override kept(response: StoredResponse): StoredResponse {
          return { ...super.kept(response), body: response.body?.length ? response.body : null }
        }
      })(),
    seenBy: ['an empty string', 'no bytes at all stay a Buffer'],
  },
  'repeated headers are merged': {
    create: () =>
      new (class extends MapStore {
        protected override kept(response: StoredResponse): StoredResponse {
          const headers = Object.entries(response.headers).map(([name, value]) => [name, String(value)] as const)
          return { ...super.kept(response), headers: Object.fromEntries(headers) }
        }
      })(),
    seenBy: ['repeated headers stay apart, in order'],
  },
  'the response is kept by reference': {
    create: () =>
      new (class extends MapStore {
        protected override kept(response: StoredResponse): StoredResponse {
          return response
        }
      })(),
    seenBy: ['what the caller does to its body and headers', 'what a reader does to a response it was given'],
  },
  'keys are folded to lower case': {
    create: () =>
      new (class extends MapStore {
        protected override keyOf(scopedKey: string): string {
          return scopedKey.toLowerCase()
        }
      })(),
    seenBy: ['keys that differ only in case are different keys'],
  },
  'keys are cut': {
    create: () =>
      new (class extends MapStore {
        protected override keyOf(scopedKey: string): string {
          return scopedKey.trim().slice(0, 255)
        }
      })(),
    seenBy: ['odd keys: a length of 1 KiB', 'a key that is the beginning of another'],
  },
  'a conflict costs a second round trip': {
    create: () =>
      new (class extends MapStore {
        protected override exists(row: Row): ClaimResult {
          this.trips++
          return super.exists(row)
        }
      })(),
    seenBy: ['take one round trip each'],
  },
  'records of any version are read': {
    create: () =>
      new (class extends MapStore {
        protected override assertVersion(): void {}
      })(),
    seenBy: ['a record of an unknown version is refused'],
  },
}
