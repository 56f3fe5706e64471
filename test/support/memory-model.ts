/** A memory store and a naive model of it that are told the same things, and must say the same. */

import assert from 'node:assert/strict'
import { type Claim, type ClaimRequest, type IdempotencyRecord, MemoryStore } from '../../src/index.ts'
import { KEYS, type Step, type WriteStep } from './memory-steps.ts'

const MAX_RECORDS = 4
const MAX_BYTES = 4_400
/** What the store counts for a record besides its body, at least, and at most 100 more. */
const RECORD_BYTES = 600

interface ModelRecord {
  readonly fingerprint: string
  token: string
  fence: number
  state: 'pending' | 'completed' | 'failed'
  leaseUntil: number
  expiresAt: number
  bodyBytes: number
}

/** What the contract says, without any thought for speed: a list that is searched and filtered. */
class Model {
  now = 0
  readonly records = new Map<string, ModelRecord>()

  find(key: string): ModelRecord | undefined {
    const record = this.records.get(key)
    return record !== undefined && record.expiresAt > this.now ? record : undefined
  }

  get live(): ModelRecord[] {
    return [...this.records.values()].filter(({ expiresAt }) => expiresAt > this.now)
  }

  /** Live, or expired within the running second, which the sweep may leave for the next one. */
  get held(): ModelRecord[] {
    return [...this.records.values()].filter(({ expiresAt }) => expiresAt >= Math.floor(this.now / 1_000) * 1_000)
  }

  claim(request: ClaimRequest): string {
    const { scopedKey, fingerprint, token, leaseMs, ttlMs } = request
    const found = this.find(scopedKey)
    if (found?.token === token) return this.describe('claimed', found)
    const isLapsed = found?.state === 'pending' && found.leaseUntil <= this.now && request.takeOverExpired
    const isFree = found === undefined || (found.fingerprint === fingerprint && (found.state === 'failed' || isLapsed))
    if (!isFree) return this.describe('exists', found)
    const [leaseUntil, expiresAt] = [this.now + leaseMs, this.now + Math.max(leaseMs, ttlMs)]
    const fence = (found?.fence ?? 0) + 1
    const record = { fingerprint, token, fence, state: 'pending', leaseUntil, expiresAt, bodyBytes: 0 } as const
    this.records.set(scopedKey, { ...record })
    return this.describe('claimed', record)
  }

  owned({ scopedKey, token, fence }: Claim, orAlready: ModelRecord['state']): ModelRecord | undefined {
    const record = this.find(scopedKey)
    if (record?.token !== token || record.fence > fence) return undefined
    return record.state === 'pending' || record.state === orAlready ? record : undefined
  }

  describe(outcome: 'claimed' | 'exists' | 'read', record: ModelRecord | undefined): string {
    if (record === undefined) return `${outcome} nothing`
    const { token, fence, state, leaseUntil, bodyBytes } = record
    if (outcome === 'claimed') return `claimed ${token} ${fence}`
    const left = state === 'pending' ? Math.max(0, leaseUntil - this.now) : 0
    return `${outcome} ${token} ${fence} ${state} ${left} ${state === 'completed' ? bodyBytes : '-'}`
  }
}

/** A memory store and a model that are told the same, step by step. */
export class Comparison {
  readonly #model = new Model()
  readonly #store = new MemoryStore({ maxRecords: MAX_RECORDS, maxBytes: MAX_BYTES, now: () => this.#model.now })
  /** Every claim that was ever asked for, with the fence it got, or 0: any of them may come back, and may write. */
  readonly #asked: (ClaimRequest & { readonly fence: number })[] = []
  #refused = 0
  #takenOver = 0
  #overtaken = 0

  async take(step: Step): Promise<void> {
    switch (step.kind) {
      case 'advance':
        this.#model.now += step.ms
        break
      case 'claim':
        await this.#claim({ scopedKey: step.key, token: `token-${this.#asked.length}`, ...step })
        break
      case 'claim again': {
        const request = this.#asked.at(-1 - (step.of % this.#asked.length))
        // Of a record that is finished the copy is a ghost, with laws of its own in the conformance suite.
        const found = request && this.#model.find(request.scopedKey)
        const isGhost = found?.token === request?.token && found?.state !== 'pending'
        if (request !== undefined && !isGhost) await this.#claim(request)
        break
      }
      default:
        await this.#write(step)
    }
    await this.#compare()
  }

  async #claim(request: ClaimRequest): Promise<void> {
    const isNew = this.#model.find(request.scopedKey) === undefined
    let fence = 0
    try {
      const result = await this.#store.claim(request)
      const expected = this.#model.claim(request)
      if (result.outcome === 'exists') assert.equal(describeRecord('exists', result.record), expected)
      else assert.equal(`claimed ${result.claim.token} ${result.claim.fence}`, expected)
      if (result.outcome === 'claimed') fence = result.claim.fence
      if (result.outcome === 'claimed' && result.takenOver !== 'no') this.#takenOver++
    } catch (error) {
      if ((error as { code?: string }).code !== 'FST_IDEMPOTENCY_STORE_FULL') throw error
      this.#refused++
      assert.ok(isNew, 'refused a key that it has')
      const isAtBound =
        this.#model.held.length >= MAX_RECORDS || heldBytes(this.#model.held) + RECORD_BYTES + 100 > MAX_BYTES
      assert.ok(isAtBound, 'refused although there is room')
    }
    this.#asked.push({ ...request, fence })
  }

  async #write(step: Exclude<Step, { kind: 'advance' | 'claim' | 'claim again' }>): Promise<void> {
    const claim = this.#asked.at(-1 - (step.of % this.#asked.length))
    if (claim === undefined) return
    const orAlready = ({ complete: 'completed', fail: 'failed', renew: 'pending', release: 'failed' } as const)[
      step.kind
    ]
    // Without a fence, as if the answer had not come, a release counts as that of a first claim.
    const known = step.kind === 'release' && claim.fence === 0 ? { ...claim, fence: 1 } : claim
    const owned = this.#model.owned(known, orAlready)
    const found = this.#model.find(claim.scopedKey)
    if (found?.token === claim.token && claim.fence > 0 && found.fence > claim.fence) this.#overtaken++
    const done = await this.#perform(step, claim)
    if (done === 'too large') {
      assert.ok(owned !== undefined && heldBytes(this.#model.held) + step.bytes + RECORD_BYTES + 100 > MAX_BYTES)
      return
    }
    assert.equal(done, owned !== undefined)
    if (owned !== undefined) this.#apply(step, claim.scopedKey, owned)
  }

  async #perform(step: WriteStep, claim: Claim): Promise<boolean | 'too large'> {
    switch (step.kind) {
      case 'complete':
        try {
          return await this.#store.complete(claim, responseOf(step.bytes), step.ms)
        } catch (error) {
          if ((error as { code?: string }).code !== 'FST_IDEMPOTENCY_RESPONSE_TOO_LARGE') throw error
          this.#refused++
          return 'too large'
        }
      case 'fail':
        return this.#store.fail(claim, step.ms)
      case 'renew':
        return this.#store.renew(claim, step.ms)
      case 'release':
        return this.#store.release(claim)
    }
  }

  #apply(step: WriteStep, key: string, record: ModelRecord): void {
    const until = this.#model.now + step.ms
    switch (step.kind) {
      case 'complete':
        Object.assign(record, { state: 'completed', expiresAt: until, bodyBytes: step.bytes })
        break
      case 'fail':
        Object.assign(record, { state: 'failed', expiresAt: until })
        break
      case 'renew':
        Object.assign(record, { leaseUntil: until, expiresAt: Math.max(record.expiresAt, until) })
        break
      case 'release':
        this.#model.records.delete(key)
    }
  }

  async #compare(): Promise<void> {
    const { records, bytes, refused } = this.#store.usage
    assert.ok(records >= this.#model.live.length, 'a live record was forgotten')
    assert.ok(records <= MAX_RECORDS && bytes <= MAX_BYTES, 'a bound was passed')
    assert.ok(bytes >= heldBytes(this.#model.live), 'bytes of a live record are not counted')
    assert.equal(refused, this.#refused)
    for (const key of KEYS) await this.#compareKey(key)
  }

  // Only live keys are read: reading drops an expired record, and then the sweep would never have anything to do.
  async #compareKey(key: string): Promise<void> {
    const found = this.#model.find(key)
    if (found === undefined) return
    const record = await this.#store.read(key)
    assert.equal(describeRecord('read', record), this.#model.describe('read', found))
  }

  /** When everything has expired nothing is left, not even a byte. Returns what has happened, to see that it did. */
  async end(): Promise<{ refused: number; takenOver: number; overtaken: number }> {
    this.#model.now += 1_000_000
    for (const key of KEYS) assert.equal(await this.#store.read(key), undefined)
    assert.deepEqual(this.#store.usage, { records: 0, bytes: 0, refused: this.#refused })
    await this.#store.close()
    return { refused: this.#refused, takenOver: this.#takenOver, overtaken: this.#overtaken }
  }
}

function responseOf(bytes: number) {
  return { statusCode: 200, headers: {}, body: Buffer.alloc(bytes), replayable: true }
}

function heldBytes(records: readonly ModelRecord[]): number {
  return records.reduce((sum, { bodyBytes }) => sum + RECORD_BYTES + bodyBytes, 0)
}

function describeRecord(outcome: 'exists' | 'read', record: IdempotencyRecord | undefined): string {
  if (record === undefined) return `${outcome} nothing`
  const { token, fence, state, leaseRemainingMs, response } = record
  return `${outcome} ${token} ${fence} ${state} ${leaseRemainingMs} ${response?.body?.length ?? '-'}`
}
