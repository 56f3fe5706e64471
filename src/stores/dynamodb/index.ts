/** `fastify-idempotency/dynamodb`. */

export { DEFAULT_ATTRIBUTES, type DynamoDBAttributes } from './attributes.ts'
export { type CostEstimate, estimateCost, LIST_PRICES, type Load, type Prices } from './cost.ts'
export { DynamoDBError } from './errors.ts'
export type { KeyPage, ListedKey, PageRequest } from './list.ts'
export type { DynamoDBStoreClient, DynamoDBStoreOptions } from './options.ts'
export type { DynamoDBRegions } from './regions.ts'
export { DynamoDBStore } from './store.ts'
export { checkTable, createTable, type DynamoDBTableClient } from './table.ts'
export type { NewTableOptions, TableCheckOptions, TableOptions } from './table-options.ts'
