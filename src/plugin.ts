/** The plugin, in the order in which things happen: register, onRoute, then one request from top to bottom. */

import type {
  FastifyInstance,
  FastifyReply,
  FastifyRequest,
  HTTPMethods,
  RouteHandlerMethod,
  RouteOptions,
} from 'fastify'
import { publishEvent } from './channels.ts'
import { IdempotencyError } from './errors.ts'
import { Events } from './events.ts'
import { decorate } from './instance.ts'
import { logListener, logWarning } from './logs.ts'
import { metricsListener } from './metrics.ts'
import {
  type IdempotencyOptions,
  type ResolvedOptions,
  resolveOptions,
  resolveRouteOptions,
  SAFE_METHODS,
} from './options.ts'
import { claimKey, type Decision } from './request/claim.ts'
import { RequestIdempotency } from './request/context.ts'
import { ANONYMOUS, readKey } from './request/key.ts'
import { OwnedClaim } from './request/owned-claim.ts'
import { Recorder } from './request/record.ts'
import { reject } from './request/reject.ts'
import { sendReplay } from './request/replay.ts'
import { type CoveredRoute, coveredRoute, isAnswered, unsafeSettings } from './request/route.ts'
import { runHandler, sentElsewhere } from './request/run.ts'
import { installSendStep, kSendStep, onError, type SteppedRequest } from './request/send-step.ts'
import { Runtime } from './runtime.ts'
import { scopedKey } from './scoped-key.ts'
import { MemoryStore } from './stores/memory.ts'

/** Registers the hooks on an instance: routes added afterwards, to it or to its children, can be covered. */
export async function plugin(instance: FastifyInstance, given: IdempotencyOptions): Promise<void> {
  const options = resolveOptions(given)
  const events = new Events()
  const runtime = new Runtime(options.store ?? new MemoryStore(), events)
  events.listen(logListener(runtime.store))
  const metrics = await metricsListener(options.metrics, runtime.store)
  if (metrics !== undefined) events.listen(metrics)
  events.listen(publishEvent)
  runtime.store.onWarning?.((warning) => logWarning(instance.log, runtime.store.name, warning))

  decorate(instance, runtime.store, options.route.failedTtlMs)
  installSendStep(instance)
  instance.addHook('onRoute', function (route) {
    cover(this, runtime, options, route)
  })
  warnOfEarlierRoutes(instance, options.methods)
  instance.addHook('onReady', () => warn(instance, runtime))
  instance.addHook('onClose', () => runtime.close())
}

async function warn(instance: FastifyInstance, { store }: Runtime): Promise<void> {
  for (const warning of (await store.check?.()) ?? []) instance.log.warn(`idempotency: ${warning}`)
}

// Fastify tells a plugin of the routes that come after it. In a child instance earlier routes are somebody else's.
function warnOfEarlierRoutes(instance: FastifyInstance, methods: ReadonlySet<string>): void {
  if (Object.getPrototypeOf(instance) !== Object.prototype) return
  const early = [...methods].filter((method) => /\([A-Z]/.test(instance.printRoutes({ method: method as HTTPMethods })))
  if (early.length === 0) return
  instance.log.warn(
    `idempotency: ${early} routes were added before the plugin had loaded and are not covered; ` +
      'await app.register(idempotency, ...) before adding routes',
  )
}

// What each wrapped handler wraps: a plugin instance further in covers a route in place of the one further out.
const originalHandlers = new WeakMap<RouteHandlerMethod, RouteHandlerMethod>()

/**
 * Once per route: a covered route gets its handler wrapped, any other stays as it is. The wrapper is where the claim
 * is made, because only there every preHandler (authentication, limits) has passed, whoever added it and when.
 */
function cover(instance: FastifyInstance, runtime: Runtime, options: ResolvedOptions, route: RouteOptions): void {
  const handler = originalHandlers.get(route.handler) ?? route.handler
  route.handler = handler
  const methods = coveredMethods(instance, options, route)
  if (methods.size === 0) return
  const routeOptions = resolveRouteOptions(options.route, route.config?.idempotency, `${[...methods]} ${route.url}`)
  const covered = coveredRoute(instance, runtime, routeOptions, route)
  for (const warning of unsafeSettings(covered)) instance.log.warn(`idempotency: ${route.url}: ${warning}`)
  const { header, required } = routeOptions

  route.handler = function (this: FastifyInstance, request, reply) {
    const isBare = request.headers[header] === undefined && !required
    const isServed = request.idempotency !== null // by a plugin instance further in, around another plugin's wrapper
    if (isBare || isServed || !methods.has(request.method)) return handler.call(this, request, reply)
    if ((request as SteppedRequest)[kSendStep] !== null) return sentElsewhere() // a hook has answered already
    return serve(covered, handler, this, request, reply)
  }
  originalHandlers.set(route.handler, handler)
  route.onError = [route.onError ?? []].flat().concat(onError)
}

function coveredMethods(instance: FastifyInstance, options: ResolvedOptions, route: RouteOptions): ReadonlySet<string> {
  const config = route.config?.idempotency
  const methods = [route.method].flat()
  if (config === false) return new Set()
  if (config === undefined)
    return new Set(options.global ? methods.filter((method) => options.methods.has(method)) : [])
  const unsafe = methods.filter((method) => !SAFE_METHODS.has(method))
  if (unsafe.length === 0) instance.log.warn(`idempotency: ${methods} ${route.url} is safe to repeat and never covered`)
  return new Set(unsafe)
}

/** One request with a key: key → fingerprint → claim → run and record, or replay, or reject. */
async function serve(
  route: CoveredRoute,
  handler: RouteHandlerMethod,
  server: FastifyInstance,
  request: FastifyRequest,
  reply: FastifyReply,
): Promise<unknown> {
  let decision: Decision
  try {
    request.idempotency = identify(route, request)
    decision = await claimKey(route, request, reply)
  } catch (error) {
    if (!isAnswered(route, request, reply)) reject(error, reply, route.options)
    return sentElsewhere()
  }
  switch (decision.kind) {
    case 'run':
      return await run(route, decision, handler, server, request, reply)
    case 'replay':
      request.idempotency.replayed = true
      if (route.options.onReplay !== undefined) await route.options.onReplay(request, decision.record)
      if (!isAnswered(route, request, reply)) sendReplay(request, reply, decision.response)
      return sentElsewhere()
    case 'unprotected':
      return handler.call(server, request, reply)
  }
}

const SHARED_SCOPE =
  'requests with cookies, but without Authorization or x-api-key, all count as one anonymous caller and share their ' +
  'keys; set the option "credential"'

function identify(route: CoveredRoute, request: FastifyRequest): RequestIdempotency {
  const { runtime, options, pattern } = route
  const key = readKey(request.raw, options)
  if (key === undefined) {
    throw new IdempotencyError('FST_IDEMPOTENCY_KEY_MISSING', `This operation requires the ${options.header} header.`)
  }
  const credential: unknown = options.credential(request)
  if (typeof credential !== 'string' || credential === '') {
    throw new TypeError(`credential(request) must return a non-empty string, got ${typeof credential}`)
  }
  if (credential === ANONYMOUS && request.headers.cookie !== undefined) runtime.warnOnce(request.log, SHARED_SCOPE)
  return new RequestIdempotency(key, scopedKey(credential, `${request.method}:${pattern}`, key))
}

function run(
  route: CoveredRoute,
  { claim, sentAt }: Decision & { kind: 'run' },
  handler: RouteHandlerMethod,
  server: FastifyInstance,
  request: FastifyRequest,
  reply: FastifyReply,
): Promise<unknown> {
  const owned = new OwnedClaim(route, request, claim, sentAt)
  if (isAnswered(route, request, reply)) {
    void owned.end({ outcome: 'release' }) // the client has its 503, and nothing has run
    return sentElsewhere()
  }
  const recorder = new Recorder(route, request, reply, owned)
  const steppedRequest = request as SteppedRequest
  steppedRequest[kSendStep] = recorder
  request.idempotency = Object.assign(request.idempotency as RequestIdempotency, { fence: claim.fence })
  return runHandler(recorder, handler, server, request, reply)
}
