/** Sending: each call within its budget, throttling waited out, everything counted. */

import { setTimeout as sleep } from 'node:timers/promises'
import {
  GetItemCommand,
  type GetItemCommandOutput,
  type ReturnValuesOnConditionCheckFailure,
  type UpdateItemCommandOutput,
} from '@aws-sdk/client-dynamodb'
import { StoreTimeoutError } from '../../errors.ts'
import { type CallOptions, type Slot, type Slots, UpdateItemCommand } from './commands.ts'
import { codeOf, isConditionFailed, isPassing, toldOf } from './errors.ts'
import type { PreparedWrite } from './expressions.ts'
import type { Meter } from './figures.ts'
import type { Item } from './item.ts'
import { itemBytes, writeUnits } from './size.ts'

/** The part of the SDK's `DynamoDBClient` that is used, to read and write items. */
export interface DynamoDBItemClient {
  send(command: UpdateItemCommand, options: CallOptions): Promise<UpdateItemCommandOutput>
  send(command: GetItemCommand, options: CallOptions): Promise<GetItemCommandOutput>
}

/** What became of a write: made, with what was there before; or its condition failed, with what is there now. */
export type Written =
  | { readonly isDone: true; readonly before: Item | undefined }
  | { readonly isDone: false; readonly found: Item | undefined }

/** What the calls of a store have in common; times in ms. */
export interface CallSettings {
  readonly tableName: string
  readonly timeoutMs: number
  readonly slots: Slots
  readonly meter: Meter
}

/** Which item, for the tables and for the log. */
export interface Subject {
  readonly operation: string
  readonly scopedKey: string
  readonly key: Item
}

const FIRST_PAUSE_MS = 20
const LONGEST_PAUSE_MS = 320

/** The calls of one operation, which share its budget. */
export class Calls {
  readonly #settings: CallSettings
  readonly #client: DynamoDBItemClient
  readonly #subject: Subject
  readonly #slot: Slot
  #hasWarned = false

  constructor(settings: CallSettings, client: DynamoDBItemClient, subject: Subject) {
    this.#settings = settings
    this.#client = client
    this.#subject = subject
    this.#slot = settings.slots.at(performance.now())
  }

  /**
   * One conditional write.
   * @throws StoreTimeoutError when the budget is over: it may have happened
   * @throws DynamoDBError when DynamoDB refuses
   */
  async write(
    { input, words }: PreparedWrite,
    values: Item,
    ifNot: ReturnValuesOnConditionCheckFailure = 'NONE',
  ): Promise<Written> {
    const command = new UpdateItemCommand({
      TableName: this.#settings.tableName,
      Key: this.#subject.key,
      ...input,
      ExpressionAttributeValues: { ...words, ...values },
      ReturnConsumedCapacity: 'TOTAL',
      ...(ifNot !== 'NONE' && { ReturnValues: 'ALL_OLD', ReturnValuesOnConditionCheckFailure: ifNot }),
    })
    try {
      const output = await this.#send(() => this.#client.send(command, this.#slot.options))
      return { isDone: true, before: output.Attributes }
    } catch (error) {
      if (!isConditionFailed(error)) throw toldOf(error)
      return { isDone: false, found: this.#conditionFailed((error as { Item?: Item }).Item) }
    }
  }

  /** One consistent read. Throws as {@link write} does. */
  async read(): Promise<Item | undefined> {
    const command = new GetItemCommand({
      TableName: this.#settings.tableName,
      Key: this.#subject.key,
      ConsistentRead: true,
      ReturnConsumedCapacity: 'TOTAL',
    })
    try {
      const { Item: item } = await this.#send(() => this.#client.send(command, this.#slot.options))
      return item
    } catch (error) {
      throw toldOf(error)
    }
  }

  // DynamoDB bills a write whose condition failed by the item that it found, without saying so.
  #conditionFailed(found: Item | undefined): Item | undefined {
    const { meter } = this.#settings
    meter.conditionFailed(this.#subject.operation)
    meter.consumed(this.#subject.operation, writeUnits(found === undefined ? 0 : itemBytes(found)))
    return found
  }

  async #send<Output extends UpdateItemCommandOutput | GetItemCommandOutput>(
    perform: () => Promise<Output>,
  ): Promise<Output> {
    let throttledBy: unknown
    for (let attempt = 0; ; attempt++) {
      try {
        const output = await this.#timed(perform)
        this.#settings.meter.consumed(this.#subject.operation, output.ConsumedCapacity?.CapacityUnits ?? 0)
        return output
      } catch (error) {
        // That the time was over in the middle of one more attempt says less than why there had to be one.
        if (error instanceof StoreTimeoutError) throw throttledBy ?? error
        if (!isPassing(error)) throw error
        throttledBy = error
        await this.#pause(error, attempt)
      }
    }
  }

  // Not by the signal alone: a client that pauses between attempts of its own may look at it late.
  async #timed<Output>(perform: () => Promise<Output>): Promise<Output> {
    const { timeoutMs, meter } = this.#settings
    const startedAt = performance.now()
    let timer: NodeJS.Timeout | undefined
    const expired = new Promise<never>((_, reject) => {
      timer = setTimeout(() => reject(new StoreTimeoutError(timeoutMs)), this.#slot.deadline - startedAt)
    })
    try {
      return await Promise.race([perform(), expired])
    } catch (error) {
      throw this.#slot.options.abortSignal.aborted ? new StoreTimeoutError(timeoutMs) : error
    } finally {
      clearTimeout(timer)
      meter.called(this.#subject.operation, performance.now() - startedAt)
    }
  }

  /** Full jitter: callers that were throttled together do not come back together. */
  async #pause(error: unknown, attempt: number): Promise<void> {
    this.#settings.meter.throttled(this.#subject.operation)
    const pauseMs = Math.random() * Math.min(FIRST_PAUSE_MS * 2 ** attempt, LONGEST_PAUSE_MS)
    if (performance.now() + pauseMs >= this.#slot.deadline) throw error
    this.#warn(codeOf(error))
    await sleep(pauseMs)
  }

  /** Once for each operation: metrics count the others. */
  #warn(code: string): void {
    if (this.#hasWarned) return
    this.#hasWarned = true
    const { operation, scopedKey } = this.#subject
    const message = `DynamoDB throttled ${operation}, or failed it; trying again`
    this.#settings.meter.warn({ operation, scopedKey, message, fields: { dynamo_error_code: code } })
  }
}
