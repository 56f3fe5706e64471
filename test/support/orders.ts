/** Cases that must hold whichever of two plugins is registered first. */

import { type TestContext, test } from 'node:test'
import fastify, { type FastifyInstance, type FastifyServerOptions } from 'fastify'
import idempotency, { type IdempotencyOptions } from '../../src/index.ts'
import { watchedStore } from './stores.ts'

/** What a case works with: an app with both plugins on it, and the calls made to our store. */
export interface BothPlugins {
  readonly t: TestContext
  readonly app: FastifyInstance
  /** Names of the calls made to the idempotency store, in order. */
  readonly calls: readonly string[]
  /** Counts a run of the handler; returns the number of the run, from 1. */
  readonly run: () => number
  /** How often the handler has run. */
  readonly runs: () => number
}

export interface OrderOptions {
  readonly idempotency?: IdempotencyOptions
  readonly server?: FastifyServerOptions
}

/** Two tests of one case: once `install` puts the other plugin on the app before ours, once after. */
export function inBothOrders(
  what: string,
  install: (app: FastifyInstance) => unknown,
  check: (both: BothPlugins) => Promise<void>,
  options: OrderOptions = {},
): void {
  const own = async (app: FastifyInstance, store: IdempotencyOptions['store'] & object) => {
    await app.register(idempotency, { metrics: false, store, ...options.idempotency })
  }
  test(`${what} [registered before us]`, (t) => start(t, options.server, [install, own], check))
  test(`${what} [registered after us]`, (t) => start(t, options.server, [own, install], check))
}

async function start(
  t: TestContext,
  server: FastifyServerOptions | undefined,
  steps: readonly ((app: FastifyInstance, store: IdempotencyOptions['store'] & object) => unknown)[],
  check: (both: BothPlugins) => Promise<void>,
): Promise<void> {
  const app = fastify(server ?? {})
  t.after(() => app.close())
  const { store, calls } = watchedStore()
  for (const step of steps) await step(app, store)
  let runs = 0
  await check({ t, app, calls, run: () => ++runs, runs: () => runs })
}
