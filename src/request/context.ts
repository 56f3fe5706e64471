/** `request.idempotency`: what a handler may know and use of the key it runs under. */

import { hash } from 'node:crypto'
import { encodePart } from '../scoped-key.ts'

/** The key a request came with, as handlers and hooks see it; null on requests without one. */
export class RequestIdempotency {
  /** What the client sent, decoded. */
  readonly key: string
  /** `idem#v1#<credential>#<route>#<key>`. */
  readonly scopedKey: string
  /** Grows each time the key is taken over; 0 when this request does not own the key. */
  fence = 0
  /** True on a request that is answered with the recorded response. */
  replayed = false
  #lease: AbortController | undefined

  constructor(key: string, scopedKey: string) {
    this.key = key
    this.scopedKey = scopedKey
  }

  /** Aborted when the lease is lost: another attempt may be running, and what this one does may be done twice. */
  get signal(): AbortSignal {
    this.#lease ??= new AbortController()
    return this.#lease.signal
  }

  /**
   * A key for a call to another service: the same for every retry of this request, different for each `name`, and
   * without a trace of the credential. 43 characters of base64url.
   * @throws TypeError when `name` is not a non-empty string
   */
  derive(name: string): string {
    if (typeof name !== 'string' || name === '') throw new TypeError('derive(name) takes a non-empty string')
    return hash('sha256', `${this.scopedKey}#${encodePart(name)}`, 'base64url')
  }

  /** @internal */
  abort(reason: Error): void {
    this.#lease ??= new AbortController()
    this.#lease.abort(reason)
  }
}
