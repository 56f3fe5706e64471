/** What the store tells of its calls. */

import type { FigureListener, StoreFigure, StoreFigures, StoreWarning, WarningListener } from '../../store.ts'

const CAPACITY = 'idempotency_dynamodb_consumed_capacity_units_total'
const THROTTLED = 'idempotency_dynamodb_throttled_total'
const CONDITION_FAILED = 'idempotency_dynamodb_conditional_check_failed_total'
const DURATION = 'idempotency_dynamodb_request_duration_ms'
const ITEM_BYTES = 'idempotency_dynamodb_item_bytes'
const EXPIRED_BLOCKED = 'idempotency_expired_blocked_total'

const FIGURES: readonly StoreFigure[] = [
  {
    name: CAPACITY,
    type: 'counter',
    labels: ['operation'],
    help: 'Capacity units consumed, as DynamoDB reports them; writes whose condition failed, of which it reports nothing, by the size of the item found.',
  },
  {
    name: THROTTLED,
    type: 'counter',
    labels: ['operation'],
    help: 'Calls that DynamoDB throttled or failed with a server error, each time; the log says with which. Raise the capacity of the table, or look for a hot key.',
  },
  {
    name: CONDITION_FAILED,
    type: 'counter',
    labels: ['operation'],
    help: 'Writes whose condition did not hold: for claims the duplicates, for others owners that had lost their claim.',
  },
  {
    name: DURATION,
    type: 'histogram',
    labels: ['operation'],
    buckets: [1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500],
    help: "Time of each call to DynamoDB in ms, with the SDK's own retries and without this store's pauses.",
  },
  {
    name: ITEM_BYTES,
    type: 'histogram',
    buckets: [512, 1_024, 2_048, 4_096, 16_384, 65_536, 131_072, 307_200, 409_600],
    help: 'Size of completed items. Each KiB begun is a write unit; beyond 400 KiB a response is not recorded.',
  },
  {
    name: EXPIRED_BLOCKED,
    type: 'counter',
    help: 'Claims that an expired record blocked. Always 0; otherwise the table is not what this store takes it for.',
  },
]

/** Counts what happens, for whoever listens. */
export class Meter implements StoreFigures {
  readonly list = FIGURES
  readonly #listeners: FigureListener[] = []
  readonly #warningListeners: WarningListener[] = []

  listen(listener: FigureListener): void {
    this.#listeners.push(listener)
  }

  onWarning(listener: WarningListener): void {
    this.#warningListeners.push(listener)
  }

  consumed(operation: string, units: number): void {
    this.#tell(CAPACITY, units, { operation })
  }

  throttled(operation: string): void {
    this.#tell(THROTTLED, 1, { operation })
  }

  conditionFailed(operation: string): void {
    this.#tell(CONDITION_FAILED, 1, { operation })
  }

  called(operation: string, durationMs: number): void {
    this.#tell(DURATION, durationMs, { operation })
  }

  completed(itemBytes: number): void {
    this.#tell(ITEM_BYTES, itemBytes)
  }

  expiredBlocked(): void {
    this.#tell(EXPIRED_BLOCKED, 1)
  }

  warn(warning: StoreWarning): void {
    for (const listener of this.#warningListeners) listener(warning)
  }

  #tell(name: string, value: number, labels?: Readonly<Record<string, string>>): void {
    for (const listener of this.#listeners) listener(name, value, labels)
  }
}
