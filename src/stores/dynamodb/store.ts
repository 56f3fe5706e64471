/** Records in DynamoDB: one item each, claimed with one conditional write. */

import { randomUUID } from 'node:crypto'
import { assertDuration, InvalidOptionError, ResponseTooLargeError } from '../../errors.ts'
import type { StoredResponse } from '../../response.ts'
import type {
  Claim,
  ClaimRequest,
  ClaimResult,
  IdempotencyRecord,
  IdempotencyStore,
  StoreFigures,
  WarningListener,
} from '../../store.ts'
import { type CallSettings, Calls, type Written } from './calls.ts'
import { isItemTooLarge } from './errors.ts'
import {
  CLAIM,
  CLAIM_WITH_CREDENTIAL,
  COMPLETE,
  COMPLETE_DEFLATED,
  FAIL,
  type PreparedWrite,
  prepared,
  RELEASE,
  RENEW,
  RENEW_AND_KEEP,
} from './expressions.ts'
import { Meter } from './figures.ts'
import { type Item, ItemReader, partitionKey } from './item.ts'
import { type KeyPage, listByCredential, type PageRequest } from './list.ts'
import { type DynamoDBStoreOptions, type ResolvedOptions, resolveOptions } from './options.ts'
import { MAX_ITEM_BYTES, packed } from './size.ts'
import { checkTable } from './table.ts'
import { claimValues, expiryAt, instant, numberOf, ownerValues } from './values.ts'

/** How often a claim is sent when what it failed of has gone, or has expired, by the time it is looked at. */
const CLAIM_ATTEMPTS = 3
const WARN_FROM_BYTES = 307_200
const CHECK_TIMEOUT_MS = 10_000

/**
 * Records in a DynamoDB table.
 *
 * A claim, a completion and a replay are one call each. Leases and expiry run by this process's clock, since DynamoDB
 * has none: `clockSkewMs` covers the difference between nodes. Expired means absent, whenever TTL deletes the item.
 *
 * A key whose expired record TTL has not deleted yet is claimed with fence 1, as any fresh one. Should that owner vanish
 * before its first renewal, the fence of the takeover goes on from the expired record's: it always grows.
 */
export class DynamoDBStore implements IdempotencyStore {
  readonly name = 'dynamodb'
  readonly #options: ResolvedOptions
  readonly #meter = new Meter()
  readonly #callSettings: CallSettings
  readonly #reader: ItemReader
  readonly #writes: Readonly<
    Record<'claim' | 'complete' | 'deflated' | 'fail' | 'renew' | 'keep' | 'release', PreparedWrite>
  >

  /** @throws InvalidOptionError naming a wrong, missing or unknown option */
  constructor(options: DynamoDBStoreOptions) {
    this.#options = resolveOptions(options)
    const { attributes, credentialIndex } = this.#options
    this.#reader = new ItemReader(attributes)
    this.#callSettings = { ...this.#options, meter: this.#meter }
    this.#writes = {
      claim: prepared(credentialIndex ? CLAIM_WITH_CREDENTIAL : CLAIM, attributes),
      complete: prepared(COMPLETE, attributes),
      deflated: prepared(COMPLETE_DEFLATED, attributes),
      fail: prepared(FAIL, attributes),
      renew: prepared(RENEW, attributes),
      keep: prepared(RENEW_AND_KEEP, attributes),
      release: prepared(RELEASE, attributes),
    }
  }

  get figures(): StoreFigures {
    return this.#meter
  }

  onWarning(listener: WarningListener): void {
    this.#meter.onWarning(listener)
  }

  async claim(request: ClaimRequest): Promise<ClaimResult> {
    assertDuration('leaseMs', request.leaseMs)
    assertDuration('ttlMs', request.ttlMs)
    const now = this.#options.now()
    const values = claimValues(request, now, this.#options)
    const calls = this.#calls('claim', request.scopedKey)
    for (let attempt = 0; attempt < CLAIM_ATTEMPTS; attempt++) {
      const written = await calls.write(this.#writes.claim, values, 'ALL_OLD')
      if (written.isDone) return this.#claimed(request, written.before, now)
      const item = written.found ?? (await calls.read())
      if (item !== undefined && !this.#reader.isExpired(item, now)) return this.#found(request, item, now)
      if (item !== undefined) this.#meter.expiredBlocked()
    }
    throw new Error(`a claim found nothing live in its way, and failed, ${CLAIM_ATTEMPTS} times`)
  }

  #claimed(request: ClaimRequest, before: Item | undefined, now: number): ClaimResult {
    const { scopedKey, fingerprint, token } = request
    const isFresh = before === undefined || this.#reader.isEmpty(before) || this.#reader.isExpired(before, now)
    if (isFresh) return { outcome: 'claimed', claim: { scopedKey, fingerprint, token, fence: 1 }, takenOver: 'no' }
    const { state, nextFence } = this.#reader.head(before)
    const claim = { scopedKey, fingerprint, token, fence: nextFence }
    return { outcome: 'claimed', claim, takenOver: state === 'failed' ? 'failed' : 'expired' }
  }

  async #found(request: ClaimRequest, item: Item, now: number): Promise<ClaimResult> {
    const { scopedKey } = request
    const { state, token, fence, fingerprint } = this.#reader.head(item)
    if (token === request.token && state === 'pending') {
      return { outcome: 'claimed', claim: { scopedKey, fingerprint, token, fence }, takenOver: 'no' }
    }
    return { outcome: 'exists', record: await this.#reader.record(scopedKey, item, now, this.#options.clockSkewMs) }
  }

  async complete(claim: Claim, response: StoredResponse, ttlMs: number): Promise<boolean> {
    assertDuration('ttlMs', ttlMs)
    const now = this.#options.now()
    const { bytes, isDeflated, itemBytes: size } = await packed(claim, response, this.#options)
    if (size > MAX_ITEM_BYTES) throw tooLarge(size)
    const write = isDeflated ? this.#writes.deflated : this.#writes.complete
    const values = { ...ownerValues(claim, now), ...expiryAt(now + ttlMs), ':response': { B: bytes } }
    try {
      const { isDone } = await this.#calls('complete', claim.scopedKey).write(write, values)
      if (isDone) this.#weigh(claim, size)
      return isDone
    } catch (error) {
      throw isItemTooLarge(error instanceof Error ? error.cause : undefined) ? tooLarge(size) : error
    }
  }

  #weigh({ scopedKey }: Claim, size: number): void {
    this.#meter.completed(size)
    if (size < WARN_FROM_BYTES) return
    this.#meter.warn({
      operation: 'complete',
      scopedKey,
      message: `a response made an item of ${size} bytes; beyond ${MAX_ITEM_BYTES} it is not recorded`,
      fields: { item_bytes: size },
    })
  }

  async fail(claim: Claim, ttlMs: number): Promise<boolean> {
    assertDuration('ttlMs', ttlMs)
    const now = this.#options.now()
    const values = { ...ownerValues(claim, now), ...expiryAt(now + ttlMs) }
    return (await this.#calls('fail', claim.scopedKey).write(this.#writes.fail, values)).isDone
  }

  /** One write; a second one when the lease would outlive the record, which is then kept for it. */
  async renew(claim: Claim, leaseMs: number): Promise<boolean> {
    assertDuration('leaseMs', leaseMs)
    const now = this.#options.now()
    const keptUntil = now + leaseMs + this.#options.clockSkewMs
    const values = { ...ownerValues(claim, now), ':leaseExpiresAt': numberOf(now + leaseMs) }
    const calls = this.#calls('renew', claim.scopedKey)
    const written = await calls.write(this.#writes.renew, { ...values, ':keptUntil': numberOf(keptUntil) }, 'ALL_OLD')
    if (written.isDone || this.#isLost(claim, written)) return written.isDone
    return (await calls.write(this.#writes.keep, { ...values, ...expiryAt(keptUntil) })).isDone
  }

  // A server that does not say what it found is asked by the second write.
  #isLost({ token }: Claim, { found }: Written & { isDone: false }): boolean {
    return found !== undefined && found[this.#options.attributes.claimToken]?.S !== token
  }

  async release({ scopedKey, token }: Claim): Promise<boolean> {
    const values = { ':token': { S: token }, ':receipt': { S: randomUUID() }, ...instant(this.#options.now()) }
    return (await this.#calls('release', scopedKey).write(this.#writes.release, values)).isDone
  }

  async read(scopedKey: string): Promise<IdempotencyRecord | undefined> {
    const now = this.#options.now()
    const item = await this.#calls('read', scopedKey).read()
    if (item === undefined || this.#reader.isExpired(item, now)) return undefined
    return this.#reader.record(scopedKey, item, now, this.#options.clockSkewMs)
  }

  /**
   * A page of the keys of one credential, newest first; needs `credentialIndex`.
   * @param credential as it stands in its scoped keys
   * @throws InvalidOptionError naming a wrong limit or token, or when there is no index
   */
  async listByCredential(credential: string, page?: PageRequest): Promise<KeyPage> {
    const { client, tableName, attributes, credentialIndex } = this.#options
    if (!credentialIndex) throw new InvalidOptionError('DynamoDBStore: listByCredential needs option "credentialIndex"')
    return listByCredential(client, tableName, attributes, credential, page)
  }

  /** Looks for a table that cannot be worked with, and for settings that lose or keep records too long. */
  async check(): Promise<readonly string[]> {
    const { client, tableName, attributes, credentialIndex } = this.#options
    return checkTable(client, { tableName, attributes, index: credentialIndex, timeoutMs: CHECK_TIMEOUT_MS })
  }

  #calls(operation: string, scopedKey: string): Calls {
    const key = { [this.#options.attributes.pk]: { S: partitionKey(scopedKey) } }
    return new Calls(this.#callSettings, { operation, scopedKey, key })
  }
}

function tooLarge(size: number): Error {
  return new ResponseTooLargeError(`the response makes an item of ${size} bytes; DynamoDB takes ${MAX_ITEM_BYTES}`)
}
