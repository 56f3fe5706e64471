/** Records in DynamoDB: one item each, claimed with one conditional write. */

import { randomUUID } from 'node:crypto'
import { assertDuration, InvalidOptionError, ResponseTooLargeError } from '../../errors.ts'
import type { StoredResponse } from '../../response.ts'
import { encodeCredential } from '../../scoped-key.ts'
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
import { Slots } from './commands.ts'
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
import { type DynamoDBStoreClient, type DynamoDBStoreOptions, type ResolvedOptions, resolveOptions } from './options.ts'
import { homeRegion } from './regions.ts'
import { MAX_ITEM_BYTES, Packer } from './size.ts'
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
  readonly #packer: Packer
  readonly #writes: Readonly<
    Record<'claim' | 'complete' | 'deflated' | 'fail' | 'renew' | 'keep' | 'release', PreparedWrite>
  >

  /** @throws InvalidOptionError naming a wrong, missing or unknown option */
  constructor(options: DynamoDBStoreOptions) {
    this.#options = resolveOptions(options)
    const { attributes, credentialIndex, tableName, timeoutMs } = this.#options
    this.#reader = new ItemReader(attributes)
    this.#packer = new Packer(this.#options)
    this.#callSettings = { tableName, timeoutMs, slots: new Slots(timeoutMs), meter: this.#meter }
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
    const isFresh = before === undefined || this.#reader.isEmpty(before) || this.#reader.isExpired(before, now)
    if (isFresh) return { outcome: 'claimed', claim: this.#claimOf(request, 1), takenOver: 'no' }
    const { state, nextFence } = this.#reader.head(before)
    const takenOver = state === 'failed' ? 'failed' : 'expired'
    return { outcome: 'claimed', claim: this.#claimOf(request, nextFence), takenOver }
  }

  async #found(request: ClaimRequest, item: Item, now: number): Promise<ClaimResult> {
    const { state, token, fence } = this.#reader.head(item)
    if (token === request.token && state === 'pending') {
      return { outcome: 'claimed', claim: this.#claimOf(request, fence), takenOver: 'no' }
    }
    const record = await this.#reader.record(request.scopedKey, item, now, this.#options.clockSkewMs)
    return { outcome: 'exists', record }
  }

  #claimOf({ scopedKey, fingerprint, token }: ClaimRequest, fence: number): Claim {
    const region = this.regionOf(scopedKey)
    return { scopedKey, fingerprint, token, fence, ...(region !== undefined && { region }) }
  }

  async complete(claim: Claim, response: StoredResponse, ttlMs: number): Promise<boolean> {
    assertDuration('ttlMs', ttlMs)
    const now = this.#options.now()
    const { value, isDeflated, itemBytes: size } = await this.#packer.pack(claim, response)
    if (size > MAX_ITEM_BYTES) throw tooLarge(size)
    const write = isDeflated ? this.#writes.deflated : this.#writes.complete
    const values = { ...ownerValues(claim, now), ...expiryAt(now + ttlMs), ':response': value }
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

  async release({ scopedKey, token, fence }: Claim): Promise<boolean> {
    // Fence 0: the claim's answer never came. Then only a first claim may be forgotten.
    const owner = { ':token': { S: token }, ':fence': numberOf(Math.max(1, fence)) }
    const values = { ...owner, ':receipt': { S: randomUUID() }, ...instant(this.#options.now()) }
    return (await this.#calls('release', scopedKey).write(this.#writes.release, values)).isDone
  }

  async read(scopedKey: string): Promise<IdempotencyRecord | undefined> {
    const now = this.#options.now()
    const item = await this.#calls('read', scopedKey).read()
    if (item === undefined || this.#reader.isExpired(item, now)) return undefined
    return this.#reader.record(scopedKey, item, now, this.#options.clockSkewMs)
  }

  /** The region that decides about a key; undefined without option `regions`. */
  regionOf(scopedKey: string): string | undefined {
    const { regions } = this.#options
    return regions && homeRegion(Object.keys(regions.clients), scopedKey)
  }

  /**
   * A page of the keys of one credential, newest first; needs `credentialIndex`. With `regions`, of the keys that belong
   * to one of them: to that of this process, unless the page names another.
   * @param credential what the plugin's option `credential` answers
   * @throws InvalidOptionError naming a wrong limit, region or token, or when there is no index
   */
  async listByCredential(credential: string, page: PageRequest = {}): Promise<KeyPage> {
    const { tableName, attributes, credentialIndex, regions } = this.#options
    if (!credentialIndex) throw new InvalidOptionError('DynamoDBStore: listByCredential needs option "credentialIndex"')
    const region = page.region ?? regions?.self
    const client = this.#clientOf(region)
    return listByCredential(client, tableName, attributes, encodeCredential(credential), { ...page, region })
  }

  #clientOf(region: string | undefined): DynamoDBStoreClient {
    const { client, regions } = this.#options
    if (region === undefined) return client
    const found = regions && Object.hasOwn(regions.clients, region) ? regions.clients[region] : undefined
    if (found !== undefined) return found
    const known = Object.keys(regions?.clients ?? {}).join(', ') || 'none'
    throw new InvalidOptionError(`DynamoDBStore: unknown region ${JSON.stringify(region)}; known regions: ${known}`)
  }

  /**
   * Looks for a table that cannot be worked with, and for settings that lose or keep records too long. Another region
   * that cannot be worked with is a warning: that is no reason to refuse the keys of the others.
   */
  async check(): Promise<readonly string[]> {
    const { client, regions } = this.#options
    const others = Object.entries(regions?.clients ?? {}).filter(([name]) => name !== regions?.self)
    const warnings = others.map(([name, other]) =>
      this.#checkTable(other).then(
        (found) => found.map((warning) => `region ${name}: ${warning}`),
        (error: Error) => [`region ${name}: ${error.message}; its keys get 503`],
      ),
    )
    return (await Promise.all([this.#checkTable(client), ...warnings])).flat()
  }

  #checkTable(client: DynamoDBStoreClient): Promise<readonly string[]> {
    const { tableName, attributes, credentialIndex: index, regions } = this.#options
    const hasHomeRegions = regions !== undefined
    return checkTable(client, { tableName, attributes, index, hasHomeRegions, timeoutMs: CHECK_TIMEOUT_MS })
  }

  #calls(operation: string, scopedKey: string): Calls {
    const key = { [this.#options.attributes.pk]: { S: partitionKey(scopedKey) } }
    const client = this.#clientOf(this.regionOf(scopedKey))
    return new Calls(this.#callSettings, client, { operation, scopedKey, key })
  }
}

function tooLarge(size: number): Error {
  return new ResponseTooLargeError(`the response makes an item of ${size} bytes; DynamoDB takes ${MAX_ITEM_BYTES}`)
}
