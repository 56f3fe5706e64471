/** What a store author can tell the suite about a store. */

/**
 * What a store lets the suite do and see. All optional. Where a field is absent the law that needs it does not apply
 * and its tests are not registered; only for `advance` the suite makes do without, by really waiting.
 */
export interface StoreCapabilities {
  /**
   * Does each call of the factory open another client on the same records? `false` for a store whose records live in
   * the instance: one instance then serves as all clients.
   * @default true
   */
  readonly sharedState?: boolean

  /**
   * Moves the clock of the store, for all clients, by whole milliseconds; up to 2^31 at a time.
   * @default the suite waits in real time, with durations below 2 s
   */
  readonly advance?: (ms: number) => void | Promise<void>

  /**
   * Milliseconds by which a store without a clock of its own takes over and expires later than it was told, to cover
   * the skew between nodes.
   * @default 0
   */
  readonly clockMarginMs?: number

  /** Round trips made so far by all clients together. With it, claim, complete and replay must take one each. */
  readonly roundTrips?: () => number | Promise<number>

  /** Plants, under this scoped key, a live record as a future version of the store would write it. */
  readonly writeUnknownVersion?: (scopedKey: string) => void | Promise<void>

  /**
   * Does the store keep and hand out the caller's own objects instead of copies? `true` waives the law that later
   * changes to a Buffer or to headers leave the record alone: for stores that trust their one caller, for speed.
   * @default false
   */
  readonly keepsReferences?: boolean

  /**
   * May a fence in a race be higher than the least that the contract asks for? `true` for a store whose parts know
   * different things of a key: it goes on from the highest. A fence that is too low, or given twice, stays a fault.
   * @default false
   */
  readonly fencesMaySkip?: boolean
}
