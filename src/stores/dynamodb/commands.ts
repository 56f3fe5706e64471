/** What calls that begin together share: a signal that ends them when their time is over, and the SDK's middleware. */

import { setMaxListeners } from 'node:events'
import * as sdk from '@aws-sdk/client-dynamodb'

/** As the SDK takes them with each call. */
export interface CallOptions {
  readonly abortSignal: AbortSignal
}

/** What calls share that begin in the same tenth of the timeout. */
export interface Slot {
  readonly options: CallOptions
  /** When their time is over and the signal is aborted, on the `performance.now()` clock. */
  readonly deadline: number
}

const SLOTS_PER_TIMEOUT = 10

/** Gives each call the slot of the moment. */
export class Slots {
  readonly #timeoutMs: number
  #slot: Slot | undefined
  #slotEndsAt = 0

  constructor(timeoutMs: number) {
    this.#timeoutMs = timeoutMs
  }

  /**
   * The slot of calls that begin at `now`. The deadline is that of the first of them, so that others have up to a tenth
   * less: with the signal later than its deadline, an attempt of the SDK's own could yet be made after a call was given up.
   */
  at(now: number): Slot {
    if (this.#slot === undefined || now >= this.#slotEndsAt) {
      this.#slot = { options: { abortSignal: this.#openSignal() }, deadline: now + this.#timeoutMs }
      this.#slotEndsAt = now + this.#timeoutMs / SLOTS_PER_TIMEOUT
    }
    return this.#slot
  }

  #openSignal(): AbortSignal {
    const controller = new AbortController()
    setMaxListeners(0, controller.signal) // as many as there are calls under way
    setTimeout(() => controller.abort(), this.#timeoutMs).unref()
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
