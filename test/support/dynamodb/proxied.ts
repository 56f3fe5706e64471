/** A store behind a proxy that breaks things. */

import type { TestContext } from 'node:test'
import type { DynamoDBClientConfig } from '@aws-sdk/client-dynamodb'
import type { StoreWarning } from '../../../src/store.ts'
import type { DynamoDBStoreOptions } from '../../../src/stores/dynamodb/index.ts'
import type { TestBed } from './bed.ts'
import { clientOf } from './client.ts'
import { startProxy } from './proxy.ts'

/** The SDK's own attempts are not made: every fault is seen by the store. */
export const ONE_ATTEMPT = { maxAttempts: 1 }

export interface Settings {
  readonly config?: DynamoDBClientConfig
  readonly options?: Partial<DynamoDBStoreOptions>
}

/** A store behind a proxy of its own, and what it told. */
export async function proxied(bed: TestBed, t: TestContext, { config = ONE_ATTEMPT, options = {} }: Settings = {}) {
  const proxy = await startProxy(bed.server)
  const client = clientOf(proxy.endpoint, config)
  t.after(async () => {
    client.destroy()
    await proxy.stop()
  })
  const store = bed.store({ client, ...options })
  const figures: Record<string, number> = {}
  store.figures.listen?.((name, value, labels = {}) => {
    const series = [name, ...Object.values(labels)].join(' ')
    figures[series] = (figures[series] ?? 0) + value
  })
  const warnings: StoreWarning[] = []
  store.onWarning((warning) => warnings.push(warning))
  return { proxy, store, figures, warnings }
}
