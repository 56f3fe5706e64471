/** What calls that begin together share: a signal that ends them when their time is over, and the SDK's middleware. */

import { setMaxListeners } from 'node:events'
import * as sdk from '@aws-sdk/client-dynamodb'
import { LONGEST_TIMER_MS } from '../option-rules.ts'

/** As the SDK takes them with each call. */
export interface CallOptions {
  readonly abortSignal: AbortSignal
}

const SLOTS_PER_TIMEOUT = 10

/** The same options for all calls that begin in the same tenth of the timeout. */
export class SharedOptions {
  readonly #timeoutMs: number
  readonly #slotMs: number
  #options: CallOptions | undefined
  #slotEndsAt = 0

  constructor(timeoutMs: number) {
    this.#timeoutMs = timeoutMs
    this.#slotMs = timeoutMs / SLOTS_PER_TIMEOUT
  }

  /**
   * The options of calls that begin at `now` (on the `performance.now()` clock). Their signal is aborted when their time
   * is over, or up to a tenth of the timeout later.
   */
  at(now: number): CallOptions {
    if (this.#options === undefined || now >= this.#slotEndsAt) {
      this.#options = { abortSignal: this.#openSignal() }
      this.#slotEndsAt = now + this.#slotMs
    }
    return this.#options
  }

  #openSignal(): AbortSignal {
    const controller = new AbortController()
    setMaxListeners(0, controller.signal) // as many as there are calls under way
    const afterMs = Math.min(this.#timeoutMs + this.#slotMs, LONGEST_TIMER_MS)
    setTimeout(() => controller.abort(), afterMs).unref()
    return controller.signal
  }
}

type Resolve = sdk.UpdateItemCommand['resolveMiddleware']

/** Resolved middleware, by the options of the calls and the configuration of the client that sends them. */
const resolved = new WeakMap<object, WeakMap<object, ReturnType<Resolve>>>()

/**
 * The SDK's command, with its middleware put together once for all calls that share their options. The SDK does that
 * for each call, which takes a seventh of all that a call costs; its `cacheMiddleware` does it once for good, but only for
 * calls without options. What is added to a client's middleware is in use a tenth of the timeout later.
 */
export class UpdateItemCommand extends sdk.UpdateItemCommand {
  override resolveMiddleware(...given: Parameters<Resolve>): ReturnType<Resolve> {
    const [, configuration, options] = given
    if (options === undefined) return super.resolveMiddleware(...given)
    const ofClients = resolved.get(options) ?? new WeakMap<object, ReturnType<Resolve>>()
    const handler = ofClients.get(configuration) ?? super.resolveMiddleware(...given)
    resolved.set(options, ofClients.set(configuration, handler))
    return handler
  }
}
