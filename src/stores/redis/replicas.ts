/** What enough replicas have, counts: WAIT, for all claims and completions of a moment together. */

import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises'
import type { RedisClient } from './client.ts'
import { fieldOf } from './record.ts'

/** How many replicas are waited for, and how long. */
export interface ReplicaPolicy {
  readonly replicas: number
  readonly timeoutMs: number
}

/** A record as it was last written. */
interface Written {
  readonly key: string
  readonly token: string
  /** The states in which it then is. */
  readonly states: string
}

type Reply = [error: Error | null, result: unknown]
type Replies = readonly Reply[] | null

/** Records that are asked for together, and what is said of them. */
interface Group {
  readonly records: Written[]
  readonly replies: Promise<Replies>
}

interface Pipeline {
  eval(script: string, keys: number, ...args: string[]): this
  wait(replicas: number, timeoutMs: number): this
  exec(): Promise<Replies>
}

/**
 * Is a record as it was written, on this connection?
 * KEYS[1] record. ARGV token, states. Returns 1 or 0.
 *
 * WAIT speaks of the last write of its own connection: on one that has written nothing, because the client has connected
 * anew, it says yes at once. So this writes: the time to live that the record has, which changes nothing.
 */
const LOOK = `
local state, token = string.match(redis.call('GETRANGE', KEYS[1], 0, 1023), '^1|(%a)|([^|\\n]*)|')
if token ~= ARGV[1] or not string.find(ARGV[2], state, 1, true) then return 0 end
redis.call('PEXPIRE', KEYS[1], redis.call('PTTL', KEYS[1]))
return 1
`

/**
 * WAIT holds up the connection that it is sent on. So there is one at a time, for all that was written before it: behind
 * a replica that has stopped, a hundred claims wait as long as one. In a Cluster each waits for itself, because only a
 * pipeline with a key goes to the node that owns it.
 */
export class ReplicaWait {
  readonly #client: RedisClient
  readonly #policy: ReplicaPolicy
  /** Gathers until the one before has its answer. */
  #next: Group | undefined
  #before: Promise<void> = Promise.resolve()

  constructor(client: RedisClient, policy: ReplicaPolicy) {
    this.#client = client
    this.#policy = policy
  }

  /**
   * Resolves when enough replicas have what was written to a record.
   * @throws Error when they do not in time, or the record is no longer as it was written
   */
  async confirm(written: Written): Promise<void> {
    const { replicas: wanted, timeoutMs } = this.#policy
    const replicas = await this.#ask(written)
    if (replicas < wanted)
      throw new Error(`only ${replicas} of ${wanted} replicas have the record after ${timeoutMs} ms`)
  }

  async #ask(written: Written): Promise<number> {
    if (this.#client.isCluster) return replicasWith(0, await this.#send([written]))
    this.#next ??= { records: [], replies: this.#sendNext() }
    const { records, replies } = this.#next
    const index = records.push(written) - 1
    return replicasWith(index, await replies)
  }

  async #sendNext(): Promise<Replies> {
    // A turn, because the answers to what was sent together come together.
    await Promise.all([this.#before, nextTurn()])
    const { records } = this.#next as Group
    this.#next = undefined
    const replies = this.#send(records)
    this.#before = settled(replies, 2 * this.#policy.timeoutMs)
    return replies
  }

  #send(records: readonly Written[]): Promise<Replies> {
    const { replicas, timeoutMs } = this.#policy
    const pipeline = this.#client.pipeline() as unknown as Pipeline
    for (const { key, token, states } of records) pipeline.eval(LOOK, 1, key, fieldOf(token), states)
    return pipeline.wait(replicas, timeoutMs).exec()
  }
}

/** @throws Error with which Redis refused */
function replicasWith(index: number, replies: Replies): number {
  const [lookError, isThere] = replies?.[index] ?? []
  const [waitError, replicas] = replies?.at(-1) ?? []
  const error = lookError ?? waitError
  if (error) throw error
  return isThere === 1 ? Number(replicas) : 0
}

/** When it has an answer, or after so long: one that never comes must not hold up the others. */
async function settled(work: Promise<unknown>, timeoutMs: number): Promise<void> {
  const answered = new AbortController()
  const late = sleep(timeoutMs, undefined, { signal: answered.signal, ref: false })
  await Promise.race([work, late]).catch(() => {})
  answered.abort()
  await late.catch(() => {})
}
