/**
 * Where recording and replaying meet Fastify: the very first onSend hook.
 *
 * What the recorder sees there is what the route sent, before compression, ETags and every other plugin. A replay
 * enters at the same point, so it passes through the same hooks as the first answer did, once.
 */

import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'

/** Continues sending, with this payload. */
export type Next = (error: Error | null, payload?: unknown) => void

/** What a request does when its reply is about to be sent: record it, or put the recorded body in. */
export interface SendStep {
  /** Calls `next`, or returns a promise of the payload to go on with: as in any Fastify hook, one of the two. */
  onSend(reply: FastifyReply, payload: unknown, next: Next): Promise<unknown> | undefined
  onError(reply: FastifyReply, error: Error): void
}

/** Key of the request property that holds its SendStep; null on requests that neither record nor replay. */
export const kSendStep = Symbol('fastify-idempotency.send-step')

/** A request as this plugin sees it. */
export type SteppedRequest = FastifyRequest & { [kSendStep]: SendStep | null }

/**
 * The step of a request that a hook has answered before its handler: it does nothing, but is not null. With a slow
 * onSend hook Fastify may go on to the handler of a request whose 401 is on its way.
 */
const answered: SendStep = {
  onSend: (_reply, payload, next) => next(null, payload) as undefined,
  onError() {},
}

function onSend(request: FastifyRequest, reply: FastifyReply, payload: unknown, next: Next) {
  const steppedRequest = request as SteppedRequest
  steppedRequest[kSendStep] ??= answered
  return steppedRequest[kSendStep].onSend(reply, payload, next)
}

/** Route-level onError hook of covered routes: tells a step that an error is what will be sent. */
export function onError(request: FastifyRequest, reply: FastifyReply, error: Error, done: () => void): void {
  ;(request as SteppedRequest)[kSendStep]?.onError(reply, error)
  done()
}

/**
 * Installs the hook in front of all onSend hooks that are already there; those added later come after it anyway.
 * Fastify has no public way to be first. Where its list of hooks cannot be found, the hook goes last, and plugins
 * that were registered before this one and rewrite bodies would rewrite a replay again: that is worth a warning.
 */
export function installSendStep(instance: FastifyInstance): void {
  if (instance.hasRequestDecorator(kSendStep)) return // a plugin instance further out has done it
  instance.decorateRequest(kSendStep, null)
  const hooks = hooksOf(instance)
  if (hooks !== undefined) return void hooks.onSend.unshift(onSend)
  instance.addHook('onSend', onSend)
  instance.log.warn('idempotency: register fastify-idempotency before every plugin that rewrites bodies in onSend')
}

function hooksOf(instance: FastifyInstance): { onSend: unknown[] } | undefined {
  for (let owner: object = instance; owner !== null; owner = Object.getPrototypeOf(owner)) {
    const symbol = Object.getOwnPropertySymbols(owner).find(({ description }) => description === 'fastify.hooks')
    const hooks = symbol && (owner as Record<symbol, { onSend?: unknown }>)[symbol]
    if (Array.isArray(hooks?.onSend)) return { onSend: hooks.onSend }
  }
  return undefined
}
