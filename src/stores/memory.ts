/** The embedded store: one process, bounded, nothing to install. */

import { assertDuration, ResponseTooLargeError, StoreFullError } from '../errors.ts'
import { type Linked, LinkedList } from '../linked-list.ts'
import { bodyBytes, type StoredResponse } from '../response.ts'
import type { Claim, ClaimRequest, ClaimResult, IdempotencyRecord, IdempotencyStore, RecordState } from '../store.ts'

/** Bounds of a {@link MemoryStore}. */
export interface MemoryStoreOptions {
  /**
   * Most records kept at a time.
   * @default 1_000_000
   */
  maxRecords?: number
  /**
   * Most bytes kept at a time: bodies, headers and keys, and 600 bytes for each record.
   * @default 268_435_456 (256 MiB)
   */
  maxBytes?: number
  /**
   * Milliseconds on a clock that never goes back; for tests.
   * @default performance.now
   */
  now?: () => number
}

interface Entry extends Linked {
  readonly scopedKey: string
  readonly fingerprint: string
  token: string
  fence: number
  state: RecordState
  leaseUntil: number
  expiresAt: number
  response: StoredResponse | undefined
  bytes: number
}

// Measured on Node 20: 70,000 records with a response of 70 bytes took 720 bytes of heap each.
const ENTRY_BYTES = 600
const SLOT_MS = 1_000

/**
 * Records in this process's memory. Every operation is O(1).
 *
 * When full it drops what has expired and otherwise refuses new claims with {@link StoreFullError} (the client gets
 * 503): a live record is never forgotten to make room, because that would run a payment twice.
 * Other processes do not see these records: with more than one, or across restarts, use a shared store.
 */
export class MemoryStore implements IdempotencyStore {
  readonly name = 'memory'
  readonly #maxRecords: number
  readonly #maxBytes: number
  readonly #now: () => number
  readonly #entries = new Map<string, Entry>()
  // Entries by the slot of time in which they expire. A slot is visited once it is over, so nothing is ever sorted.
  readonly #slots = new Map<number, LinkedList<Entry>>()
  #sweptSlot: number
  #bytes = 0
  #refused = 0
  #timer: NodeJS.Timeout | undefined

  /** @throws TypeError naming a bound that is not a whole number of at least 1 */
  constructor(options: MemoryStoreOptions = {}) {
    this.#maxRecords = bound('maxRecords', options.maxRecords ?? 1_000_000)
    this.#maxBytes = bound('maxBytes', options.maxBytes ?? 268_435_456)
    this.#now = options.now ?? (() => performance.now())
    this.#sweptSlot = slotOf(this.#now()) - 1
  }

  /** What is kept now, and how many claims and responses were refused for lack of room. */
  get usage(): { readonly records: number; readonly bytes: number; readonly refused: number } {
    return { records: this.#entries.size, bytes: this.#bytes, refused: this.#refused }
  }

  async claim(request: ClaimRequest): Promise<ClaimResult> {
    assertDuration('leaseMs', request.leaseMs)
    assertDuration('ttlMs', request.ttlMs)
    const now = this.#now()
    const entry = this.#live(request.scopedKey, now)
    if (entry === undefined) return claimed(this.#insert(request, now), 'no')
    // The driver sent the claim twice. What its owner has made of it since must not be taken over by its echo.
    if (entry.token === request.token) return echoed(entry, now)
    const takenOver = takeOverReason(entry, request, now)
    if (takenOver === undefined) return { outcome: 'exists', record: recordOf(entry, now) }
    this.#own(entry, request, now)
    return claimed(entry, takenOver)
  }

  async complete(claim: Claim, response: StoredResponse, ttlMs: number): Promise<boolean> {
    assertDuration('ttlMs', ttlMs)
    const now = this.#now()
    const entry = this.#owned(claim, 'completed', now)
    if (entry === undefined) return false
    const bytes = sizeOf(entry, response)
    this.#makeRoom(bytes - entry.bytes, now)
    this.#bytes += bytes - entry.bytes
    entry.bytes = bytes
    entry.state = 'completed'
    entry.response = response
    this.#expire(entry, now + ttlMs)
    return true
  }

  async fail(claim: Claim, ttlMs: number): Promise<boolean> {
    assertDuration('ttlMs', ttlMs)
    const now = this.#now()
    const entry = this.#owned(claim, 'failed', now)
    if (entry === undefined) return false
    entry.state = 'failed'
    this.#expire(entry, now + ttlMs)
    return true
  }

  async renew(claim: Claim, leaseMs: number): Promise<boolean> {
    assertDuration('leaseMs', leaseMs)
    const now = this.#now()
    const entry = this.#owned(claim, 'pending', now)
    if (entry === undefined) return false
    entry.leaseUntil = now + leaseMs
    this.#expire(entry, Math.max(entry.expiresAt, entry.leaseUntil))
    return true
  }

  async release(claim: Claim): Promise<boolean> {
    // Fence 0: the claim's answer never came. Then only a first claim may be forgotten.
    const entry = this.#owned({ ...claim, fence: Math.max(1, claim.fence) }, 'failed', this.#now())
    if (entry === undefined) return false
    this.#delete(entry)
    return true
  }

  async read(scopedKey: string): Promise<IdempotencyRecord | undefined> {
    const now = this.#now()
    const entry = this.#live(scopedKey, now)
    return entry === undefined ? undefined : recordOf(entry, now)
  }

  async check(): Promise<readonly string[]> {
    if (process.env.NODE_ENV !== 'production') return []
    return [
      'the memory store is in use with NODE_ENV=production: its records are lost at a restart and unseen by other ' +
        'processes, so a retry can run twice; pass a shared store',
    ]
  }

  /** Stops the sweep timer; records stay, and the timer starts again with the next claim. */
  async close(): Promise<void> {
    clearTimeout(this.#timer)
    this.#timer = undefined
  }

  /** Expired means absent, at once, whether or not the sweep has passed. */
  #live(scopedKey: string, now: number): Entry | undefined {
    const entry = this.#entries.get(scopedKey)
    if (entry === undefined || entry.expiresAt > now) return entry
    this.#delete(entry)
    return undefined
  }

  /** The entry that this claim may write: pending, or already in the state it asks for (the same call sent twice). */
  #owned(claim: Claim, orAlready: RecordState, now: number): Entry | undefined {
    const entry = this.#live(claim.scopedKey, now)
    if (entry === undefined || entry.token !== claim.token) return undefined
    // Somebody took the key over, and a copy of this claim that came late has taken it back at a fence nobody knows.
    if (entry.fence > claim.fence) return undefined
    return entry.state === 'pending' || entry.state === orAlready ? entry : undefined
  }

  #insert(request: ClaimRequest, now: number): Entry {
    const entry: Entry = {
      scopedKey: request.scopedKey,
      fingerprint: request.fingerprint,
      token: request.token,
      fence: 1,
      state: 'pending',
      leaseUntil: now + request.leaseMs,
      expiresAt: now + Math.max(request.ttlMs, request.leaseMs),
      response: undefined,
      bytes: 0,
      previous: undefined,
      next: undefined,
    }
    entry.bytes = sizeOf(entry, undefined)
    this.#admit(entry, now)
    this.#entries.set(entry.scopedKey, entry)
    this.#bytes += entry.bytes
    this.#file(entry)
    return entry
  }

  #admit(entry: Entry, now: number): void {
    if (this.#fits(1, entry.bytes)) return
    this.#sweep(now)
    if (this.#fits(1, entry.bytes)) return
    this.#refused++
    throw new StoreFullError(`the memory store is full: ${this.#entries.size} records, ${this.#bytes} bytes`)
  }

  #makeRoom(bytes: number, now: number): void {
    if (this.#fits(0, bytes)) return
    this.#sweep(now)
    if (this.#fits(0, bytes)) return
    this.#refused++
    throw new ResponseTooLargeError(`the memory store has no room for ${bytes} bytes: ${this.#bytes} bytes are in use`)
  }

  #fits(records: number, bytes: number): boolean {
    return this.#entries.size + records <= this.#maxRecords && this.#bytes + bytes <= this.#maxBytes
  }

  #own(entry: Entry, request: ClaimRequest, now: number): void {
    entry.token = request.token
    entry.fence++
    entry.state = 'pending'
    entry.leaseUntil = now + request.leaseMs
    this.#expire(entry, now + Math.max(request.ttlMs, request.leaseMs))
  }

  #expire(entry: Entry, expiresAt: number): void {
    const slot = slotOf(entry.expiresAt)
    if (slotOf(expiresAt) !== slot) this.#unfile(entry)
    entry.expiresAt = expiresAt
    if (slotOf(expiresAt) !== slot) this.#file(entry)
  }

  #file(entry: Entry): void {
    const slot = slotOf(entry.expiresAt)
    let entries = this.#slots.get(slot)
    if (entries === undefined) {
      entries = new LinkedList()
      this.#slots.set(slot, entries)
    }
    entries.append(entry)
    if (this.#timer === undefined) this.#arm()
  }

  #unfile(entry: Entry): void {
    const slot = slotOf(entry.expiresAt)
    const entries = this.#slots.get(slot)
    entries?.remove(entry)
    if (entries?.first === undefined) this.#slots.delete(slot)
  }

  #delete(entry: Entry): void {
    this.#unfile(entry)
    this.#entries.delete(entry.scopedKey)
    this.#bytes -= entry.bytes
  }

  #arm(): void {
    this.#timer = setTimeout(() => {
      this.#timer = undefined
      this.#sweep(this.#now())
      if (this.#entries.size > 0) this.#arm()
    }, SLOT_MS)
    this.#timer.unref()
  }

  /** Drops whole slots that are over, and the head of the current one: O(1) for each record dropped. */
  #sweep(now: number): void {
    const current = slotOf(now)
    for (const slot of this.#slotsToSweep(current)) {
      const entries = this.#slots.get(slot)
      while (entries?.first !== undefined && entries.first.expiresAt <= now) this.#delete(entries.first)
    }
    this.#sweptSlot = current - 1
  }

  // After a long pause there are fewer slots than seconds: walk whichever is shorter.
  #slotsToSweep(current: number): Iterable<number> {
    const first = this.#sweptSlot + 1
    if (current - first > this.#slots.size) return [...this.#slots.keys()].filter((slot) => slot <= current)
    return Array.from({ length: current - first + 1 }, (_, offset) => first + offset)
  }
}

function slotOf(instant: number): number {
  return Math.floor(instant / SLOT_MS)
}

function bound(name: string, value: number): number {
  if (Number.isSafeInteger(value) && value >= 1) return value
  throw new TypeError(`MemoryStore: option "${name}" takes a whole number of at least 1, got ${value}`)
}

function claimed(entry: Entry, takenOver: 'no' | 'failed' | 'expired'): ClaimResult {
  const { scopedKey, fingerprint, token, fence } = entry
  return { outcome: 'claimed', claim: { scopedKey, fingerprint, token, fence }, takenOver }
}

function echoed(entry: Entry, now: number): ClaimResult {
  return entry.state === 'pending' ? claimed(entry, 'no') : { outcome: 'exists', record: recordOf(entry, now) }
}

function takeOverReason(entry: Entry, request: ClaimRequest, now: number): 'failed' | 'expired' | undefined {
  if (entry.fingerprint !== request.fingerprint) return undefined
  if (entry.state === 'failed') return 'failed'
  const expired = entry.state === 'pending' && entry.leaseUntil <= now
  return expired && request.takeOverExpired ? 'expired' : undefined
}

function recordOf(entry: Entry, now: number): IdempotencyRecord {
  const { scopedKey, fingerprint, token, fence, state, response } = entry
  const leaseRemainingMs = state === 'pending' ? Math.max(0, entry.leaseUntil - now) : 0
  return { scopedKey, fingerprint, token, fence, state, leaseRemainingMs, response }
}

function sizeOf(entry: Entry, response: StoredResponse | undefined): number {
  const own = ENTRY_BYTES + entry.scopedKey.length + entry.fingerprint.length
  if (response === undefined) return own
  let headers = 0
  for (const name in response.headers) headers += name.length + String(response.headers[name]).length
  return own + headers + bodyBytes(response.body)
}
