/** Records in Redis: one key each, claimed and replayed with one native command. */

import { assertDuration } from '../../errors.ts'
import type { StoredResponse } from '../../response.ts'
import type {
  Claim,
  ClaimRequest,
  ClaimResult,
  IdempotencyRecord,
  IdempotencyStore,
  StoreFigures,
} from '../../store.ts'
import { checkServer, hasNativeClaim } from './check.ts'
import { connect, type OwnClient, type RedisAddress, type RedisClient, whenReady } from './client.ts'
import { redisFigures } from './figures.ts'
import { OneWrite } from './one-write.ts'
import { checkStoreOptions } from './options.ts'
import {
  COMPLETED,
  completedValue,
  failedValue,
  fieldOf,
  pendingValue,
  readHead,
  readRecord,
  retentionOf,
  unknownVersion,
} from './record.ts'
import { ReplicaWait } from './replicas.ts'
import { SCRIPTS } from './scripts.ts'

/** Options of a {@link RedisStore}, beside where Redis is. */
export interface RedisStoreSettings {
  /**
   * Put in front of every scoped key.
   * @default ''
   */
  keyPrefix?: string
  /**
   * Responses from this size in bytes are deflated where that makes them smaller.
   * @default Infinity: never
   */
  deflateFrom?: number
  /**
   * Replicas that must have a claim or a completed response before it counts (WAIT). 0 leaves it to asynchronous
   * replication, which loses acknowledged claims in a failover.
   * @default 0
   */
  waitReplicas?: number
  /**
   * How long the replicas are waited for, in ms.
   * @default 500
   */
  waitTimeoutMs?: number
  /**
   * Refuse to start when the start-up check finds something unsafe, instead of warning.
   * @default false
   */
  strict?: boolean
}

/** A connected ioredis client, or where the store should connect to. */
export type RedisStoreOptions = RedisStoreSettings & ({ readonly client: RedisClient } | RedisAddress)

type ScriptName = keyof typeof SCRIPTS
type ClaimReply = [kind: Buffer, number: number | Buffer, text: Buffer]

const READY_WITHIN_MS = 5_000

/**
 * Records in Redis 6.2 or later (or Valkey), single, behind Sentinel, or Cluster.
 *
 * A new claim and a replay are `SET key value NX GET PX ttl`; scripts serve the rare branches. Leases run by Redis's
 * clock. A client that is handed over stays the caller's to close; one that the store has built is closed with it.
 */
export class RedisStore implements IdempotencyStore {
  readonly name = 'redis'
  readonly figures: StoreFigures
  readonly #client: RedisClient
  readonly #oneWrite: OneWrite
  readonly #ownClient: OwnClient | undefined
  readonly #keyPrefix: string
  readonly #deflateFrom: number
  readonly #waitReplicas: number
  readonly #replicaWait: ReplicaWait | undefined
  readonly #strict: boolean
  /** Undefined until the server's version is known; until then a script claims, which every version runs. */
  #hasNativeClaim: boolean | undefined
  readonly #onReady = () => void this.#learnVersion()

  /** @throws InvalidOptionError naming a wrong option */
  constructor(options: RedisStoreOptions) {
    const given = checkStoreOptions(options)
    const policy = { replicas: given.waitReplicas ?? 0, timeoutMs: given.waitTimeoutMs ?? 500 }
    this.#ownClient = 'client' in given ? undefined : connect(given, policy.timeoutMs)
    this.#client = 'client' in given ? given.client : (this.#ownClient as OwnClient).client
    this.#oneWrite = new OneWrite(this.#client)
    this.figures = redisFigures(this.#client)
    this.#keyPrefix = given.keyPrefix ?? ''
    this.#deflateFrom = given.deflateFrom ?? Number.POSITIVE_INFINITY
    this.#waitReplicas = policy.replicas
    this.#replicaWait = policy.replicas > 0 ? new ReplicaWait(this.#client, policy) : undefined
    this.#strict = given.strict ?? false
    for (const [name, lua] of Object.entries(SCRIPTS)) this.#client.defineCommand(name, { lua, numberOfKeys: 1 })
    // At each connection, because it may be to another server than the last one.
    this.#client.on('ready', this.#onReady)
    if (this.#client.status === 'ready') this.#onReady()
  }

  async #learnVersion(): Promise<void> {
    this.#hasNativeClaim = await hasNativeClaim(this.#client).catch(() => undefined)
  }

  async claim(request: ClaimRequest): Promise<ClaimResult> {
    assertDuration('leaseMs', request.leaseMs)
    assertDuration('ttlMs', request.ttlMs)
    const result = this.#hasNativeClaim ? await this.#claimNatively(request) : await this.#claimByScript(request)
    if (this.#replicaWait && result.outcome === 'claimed') await this.#confirm(this.#replicaWait, result.claim)
    return result
  }

  async #confirm(replicaWait: ReplicaWait, claim: Claim): Promise<void> {
    const { scopedKey, token } = claim
    try {
      await replicaWait.confirm({ key: this.#key(scopedKey), token, states: 'p' })
    } catch (error) {
      // Best effort, because the caller gives it back too; and it must not be forgotten when it was taken over.
      if (claim.fence === 1) await this.release(claim).catch(() => {})
      throw error
    }
  }

  async #claimNatively(request: ClaimRequest): Promise<ClaimResult> {
    const { scopedKey } = request
    const options = ['PX', retentionOf(request), 'NX', 'GET'] as never[]
    this.#oneWrite.begin()
    const found = await this.#client.setBuffer(this.#key(scopedKey), pendingValue(request, 1), ...options)
    if (found === null) return claimed(request, 1, 'no')
    const head = readHead(found)
    if (head.state === 'completed') return { outcome: 'exists', record: await readRecord(scopedKey, found, head, 0) }
    return this.#claimByScript(request)
  }

  async #claimByScript(request: ClaimRequest): Promise<ClaimResult> {
    const { scopedKey, token, fingerprint, leaseMs, takeOverExpired } = request
    const mayTakeOver = takeOverExpired ? 1 : 0
    const args = [fieldOf(token), fieldOf(fingerprint), leaseMs, retentionOf(request), mayTakeOver]
    const [kind, number, text] = (await this.#run('fidemClaim1', scopedKey, ...args)) as ClaimReply
    switch (kind.toString()) {
      case 'claimed':
        return claimed(request, Number(number), text.toString() as 'no' | 'failed' | 'expired')
      case 'exists':
        return { outcome: 'exists', record: await readRecord(scopedKey, text, readHead(text), Number(number)) }
      default:
        throw unknownVersion(String(number))
    }
  }

  async complete(claim: Claim, response: StoredResponse, ttlMs: number): Promise<boolean> {
    assertDuration('ttlMs', ttlMs)
    const value = await completedValue(claim, response, this.#deflateFrom)
    const isOwner = await this.#isDone('fidemWrite2', claim, value, ttlMs, COMPLETED)
    const { scopedKey, token } = claim
    if (isOwner) await this.#replicaWait?.confirm({ key: this.#key(scopedKey), token, states: COMPLETED })
    return isOwner
  }

  async fail(claim: Claim, ttlMs: number): Promise<boolean> {
    assertDuration('ttlMs', ttlMs)
    return this.#isDone('fidemWrite2', claim, failedValue(claim), ttlMs, 'f')
  }

  async renew(claim: Claim, leaseMs: number): Promise<boolean> {
    assertDuration('leaseMs', leaseMs)
    return this.#isDone('fidemRenew2', claim, leaseMs)
  }

  async release(claim: Claim): Promise<boolean> {
    return this.#isDone('fidemRelease2', claim)
  }

  /**
   * Undoes a claim under which nothing has run, for a quorum: a fresh key is free again, one that was taken over has
   * failed at the fence that it had before.
   * @param ttlMs how long the failed record is kept
   * @returns false when this very claim, by token and fence, is no longer pending
   */
  async giveBack(claim: Claim, ttlMs: number): Promise<boolean> {
    assertDuration('ttlMs', ttlMs)
    return this.#isDone('fidemGiveBack1', claim, ttlMs)
  }

  async read(scopedKey: string): Promise<IdempotencyRecord | undefined> {
    const reply = (await this.#run('fidemRead1', scopedKey)) as [leaseRemainingMs: number, value: Buffer] | null
    if (reply === null) return undefined
    const [leaseRemainingMs, value] = reply
    return readRecord(scopedKey, value, readHead(value), leaseRemainingMs)
  }

  /** Waits for the connection, learns the server's version, and looks for settings that lose records. */
  async check(): Promise<readonly string[]> {
    await whenReady(this.#client, READY_WITHIN_MS)
    await this.#learnVersion()
    const warnings = await checkServer(this.#client, this.#waitReplicas)
    if (this.#strict && warnings.length > 0) throw new Error(`RedisStore (strict): ${warnings.join('; ')}`)
    return warnings
  }

  async close(): Promise<void> {
    this.#client.off('ready', this.#onReady)
    this.#ownClient?.disconnect()
  }

  #key(scopedKey: string): string {
    return this.#keyPrefix + scopedKey
  }

  #run(script: ScriptName, scopedKey: string, ...args: (string | number | Buffer)[]): Promise<unknown> {
    const command = `${script}Buffer` as const
    const client = this.#client as unknown as Record<typeof command, (...args: unknown[]) => Promise<unknown>>
    this.#oneWrite.begin()
    return client[command](this.#key(scopedKey), ...args)
  }

  async #isDone(
    script: ScriptName,
    { scopedKey, token, fence }: Claim,
    ...args: (string | number | Buffer)[]
  ): Promise<boolean> {
    return (await this.#run(script, scopedKey, fieldOf(token), fence, ...args)) === 1
  }
}

function claimed(request: ClaimRequest, fence: number, takenOver: 'no' | 'failed' | 'expired'): ClaimResult {
  const { scopedKey, fingerprint, token } = request
  return { outcome: 'claimed', claim: { scopedKey, fingerprint, token, fence }, takenOver }
}
