/** What users may set, what it defaults to, and the one place where wrong settings are refused. */

import { inspect } from 'node:util'
import type { FastifyReply, FastifyRequest, RegisterOptions } from 'fastify'
import { InvalidOptionError } from './errors.ts'
import { credentialFromHeaders } from './request/key.ts'
import type { IdempotencyRecord, IdempotencyStore } from './store.ts'

/** What the end of a request does to its record: keep the response, let the next retry take over, or forget. */
export type Outcome = 'complete' | 'fail' | 'release'

/** Options of one covered route, in `config.idempotency`; at `register` they are the default for every route. */
export interface RouteIdempotencyOptions {
  /**
   * Who is calling, from trusted context; a stable account id is best. Must return a non-empty string.
   * @default SHA-256 of the `Authorization` and `x-api-key` headers; `anonymous` without either
   */
  credential?: (request: FastifyRequest) => string
  /**
   * Header that carries the key.
   * @default 'idempotency-key'
   */
  header?: string
  /**
   * Answer 400 when the header is missing; otherwise such a request runs unprotected.
   * @default false
   */
  required?: boolean
  /**
   * Accept only a structured-field string (RFC 9651 §3.3.3): `"8e03978e"` with its quotes.
   * @default false
   */
  strict?: boolean
  /** A rule of your own, after the built-in ones; false answers 400. */
  validateKey?: (key: string) => boolean
  /**
   * What is digested to tell a retry from a reuse, in place of everything below.
   * @default method, path and query, and the parsed body
   */
  fingerprint?: (request: FastifyRequest) => string | Uint8Array | object
  /**
   * Body members that may differ between retries: a name at any depth, or a dotted path.
   * @default []
   */
  ignoreFields?: readonly string[]
  /**
   * How long a claim is protected without a sign of life, in ms. Renewed at a third of it while the handler runs.
   * @default 30_000
   */
  leaseMs?: number
  /**
   * How long a completed response is replayed, in ms.
   * @default 86_400_000 (24 hours)
   */
  ttlMs?: number
  /**
   * How long a failed attempt keeps its fingerprint and fence, in ms; the next retry takes it over at once.
   * @default 300_000
   */
  failedTtlMs?: number
  /**
   * A duplicate of a request that is still running: answer 409, or wait up to `waitMs` for its answer.
   * @default 'reject'
   */
  onInProgress?: 'reject' | { waitMs: number }
  /**
   * A pending claim whose lease ran out (its process died): run again, or answer 409 until an operator has looked.
   * @default 'rerun'
   */
  onLeaseExpired?: 'rerun' | 'reject'
  /**
   * The store does not answer: 503, or run without protection.
   * @default 'reject'
   */
  onStoreError?: 'reject' | 'proceed'
  /**
   * How long a store call is waited for, in ms.
   * @default 1_000
   */
  storeTimeoutMs?: number
  /** What the end of a request means. `error` is what was thrown or sent as an error. Default: the table in the README. */
  outcome?: (request: FastifyRequest, reply: FastifyReply, error?: Error) => Outcome
  /** Runs before a replay; throw to refuse it, for example when a permission was revoked. */
  onReplay?: (request: FastifyRequest, record: IdempotencyRecord) => void | Promise<void>
  /**
   * Largest body that is recorded, in bytes. A larger reply is sent, and a retry of it gets 409.
   * @default 1_048_576
   */
  maxResponseBytes?: number
  /** Which response headers are recorded, on top of the built-in deny list. */
  storeHeaders?: (name: string, value: string | readonly string[]) => boolean
  /**
   * How a rejected request is answered: problem+json, or thrown to the app's error handler.
   * @default 'problem'
   */
  rejectWith?: 'problem' | 'throw'
  /** Absolute URL of your documentation: `type` of the problem and `Link: rel="describedby"`. */
  documentationUrl?: string
}

/** The part of a prom-client `Registry` that is used; prom-client itself stays optional. */
export interface MetricsRegistry {
  registerMetric(metric: never): void
  getSingleMetric(name: string): unknown
}

/** Options of `app.register(idempotency, options)`. */
export interface IdempotencyOptions extends RouteIdempotencyOptions {
  /**
   * Where records live. Closed with the app.
   * @default new MemoryStore()
   */
  store?: IdempotencyStore
  /**
   * Methods covered on routes that do not say `config.idempotency`. GET, HEAD, OPTIONS and TRACE cannot be.
   * @default ['POST', 'PATCH']
   */
  methods?: readonly string[]
  /**
   * Cover every route with one of `methods`; false covers only routes with `config.idempotency`.
   * @default true
   */
  global?: boolean
  /**
   * prom-client registry for the metrics, or false for none.
   * @default the global registry, when prom-client is installed
   */
  metrics?: MetricsRegistry | false
}

type Defaulted =
  | 'credential'
  | 'header'
  | 'required'
  | 'strict'
  | 'leaseMs'
  | 'ttlMs'
  | 'failedTtlMs'
  | 'ignoreFields'
  | 'onInProgress'
  | 'onLeaseExpired'
  | 'onStoreError'
  | 'storeTimeoutMs'
  | 'maxResponseBytes'
  | 'rejectWith'

/** Options of a route with every default filled in. */
export type ResolvedRouteOptions = Readonly<
  Required<Pick<RouteIdempotencyOptions, Defaulted>> & Omit<RouteIdempotencyOptions, Defaulted>
>

const ROUTE_DEFAULTS: ResolvedRouteOptions = {
  credential: credentialFromHeaders,
  header: 'idempotency-key',
  required: false,
  strict: false,
  ignoreFields: [],
  leaseMs: 30_000,
  ttlMs: 86_400_000,
  failedTtlMs: 300_000,
  onInProgress: 'reject',
  onLeaseExpired: 'rerun',
  onStoreError: 'reject',
  storeTimeoutMs: 1_000,
  maxResponseBytes: 1_048_576,
  rejectWith: 'problem',
}

/** Methods without a side effect by definition (RFC 9110 §9.2.1): never covered. */
export const SAFE_METHODS: ReadonlySet<string> = new Set(['GET', 'HEAD', 'OPTIONS', 'TRACE'])

const MAX_TIMER_MS = 2 ** 31 - 1

interface Rule {
  readonly takes: string
  readonly accepts: (value: unknown) => boolean
}

const isFunction: Rule = { takes: 'a function', accepts: (value) => typeof value === 'function' }
const isBoolean: Rule = { takes: 'true or false', accepts: (value) => typeof value === 'boolean' }
const isDuration: Rule = {
  takes: 'a whole number of milliseconds, at least 1',
  accepts: (value) => Number.isSafeInteger(value) && (value as number) >= 1,
}
const isTimer: Rule = {
  takes: `a whole number of milliseconds from 1 to ${MAX_TIMER_MS}`,
  accepts: (value) => isDuration.accepts(value) && (value as number) <= MAX_TIMER_MS,
}

function oneOf(...words: string[]): Rule {
  return { takes: words.map((word) => `'${word}'`).join(' or '), accepts: (value) => words.includes(value as string) }
}

const ROUTE_RULES: Readonly<Record<keyof RouteIdempotencyOptions, Rule>> = {
  credential: isFunction,
  header: {
    takes: 'a header name (RFC 9110 token)',
    accepts: (value) => typeof value === 'string' && /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/.test(value),
  },
  required: isBoolean,
  strict: isBoolean,
  validateKey: isFunction,
  fingerprint: isFunction,
  ignoreFields: {
    takes: 'an array of body member names',
    accepts: (value) => Array.isArray(value) && value.every((field) => typeof field === 'string' && field !== ''),
  },
  leaseMs: isTimer,
  ttlMs: isDuration,
  failedTtlMs: isDuration,
  onInProgress: {
    takes: `'reject' or { waitMs: ${isTimer.takes} }`,
    accepts: (value) => value === 'reject' || isWait(value),
  },
  onLeaseExpired: oneOf('rerun', 'reject'),
  onStoreError: oneOf('reject', 'proceed'),
  storeTimeoutMs: isTimer,
  outcome: isFunction,
  onReplay: isFunction,
  maxResponseBytes: {
    takes: 'a whole number of bytes, at least 0',
    accepts: (value) => Number.isSafeInteger(value) && (value as number) >= 0,
  },
  storeHeaders: isFunction,
  rejectWith: oneOf('problem', 'throw'),
  documentationUrl: {
    takes: 'an absolute URL',
    accepts: (value) => typeof value === 'string' && URL.canParse(value) && !/[<>"\s]/.test(value),
  },
}

function isWait(value: unknown): boolean {
  if (typeof value !== 'object' || value === null) return false
  return Object.keys(value).join() === 'waitMs' && isTimer.accepts((value as { waitMs: unknown }).waitMs)
}

const STORE_METHODS = ['claim', 'complete', 'fail', 'renew', 'release', 'read'] as const

const PLUGIN_RULES: Readonly<Record<keyof IdempotencyOptions, Rule>> = {
  ...ROUTE_RULES,
  store: {
    takes: `an IdempotencyStore: a name and the methods ${STORE_METHODS.join(', ')}`,
    accepts: (value) => isStore(value),
  },
  methods: {
    takes: 'an array of methods other than GET, HEAD, OPTIONS and TRACE',
    accepts: (value) => Array.isArray(value) && value.every(isUnsafeMethod),
  },
  global: isBoolean,
  metrics: {
    takes: 'a prom-client Registry or false',
    accepts: (value) => value === false || typeof (value as MetricsRegistry | null)?.registerMetric === 'function',
  },
}

function isStore(value: unknown): boolean {
  const store = value as Record<string, unknown> | null | undefined
  return typeof store?.name === 'string' && STORE_METHODS.every((method) => typeof store[method] === 'function')
}

function isUnsafeMethod(method: unknown): boolean {
  return typeof method === 'string' && /^[A-Za-z]+$/.test(method) && !SAFE_METHODS.has(method.toUpperCase())
}

/** What `register` was given, checked; `route` holds the defaults for every covered route. */
export interface ResolvedOptions {
  readonly store: IdempotencyStore | undefined
  readonly methods: ReadonlySet<string>
  readonly global: boolean
  readonly metrics: MetricsRegistry | false | undefined
  readonly route: ResolvedRouteOptions
}

/**
 * Checks and freezes the options of `register`.
 * @throws InvalidOptionError naming the option and what it takes
 */
export function resolveOptions(given: IdempotencyOptions): ResolvedOptions {
  const { prefix, logLevel, logSerializers, ...own } = given as IdempotencyOptions & RegisterOptions // Fastify's own
  check(own, PLUGIN_RULES, 'register')
  const { store, methods = ['POST', 'PATCH'], global = true, metrics, ...route } = own
  return Object.freeze({
    store,
    methods: new Set(methods.map((method) => method.toUpperCase())),
    global,
    metrics,
    route: merge(ROUTE_DEFAULTS, route),
  })
}

/**
 * Checks `config.idempotency` of one route and lays it over the options of `register`.
 * @throws InvalidOptionError naming the route, the option and what it takes
 */
export function resolveRouteOptions(base: ResolvedRouteOptions, given: unknown, route: string): ResolvedRouteOptions {
  if (given === undefined || given === true) return base
  if (typeof given !== 'object' || given === null || Array.isArray(given)) {
    throw new InvalidOptionError(
      `config.idempotency of ${route} takes true, false or an object of options, got ${show(given)}`,
    )
  }
  check(given, ROUTE_RULES, route)
  return merge(base, given)
}

function merge(base: ResolvedRouteOptions, given: RouteIdempotencyOptions): ResolvedRouteOptions {
  const options = { ...base, ...withoutUndefined(given) }
  return Object.freeze({ ...options, header: options.header.toLowerCase() })
}

function withoutUndefined<T extends object>(given: T): T {
  return Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined)) as T
}

function check(given: object, rules: Readonly<Record<string, Rule>>, place: string): void {
  for (const [name, value] of Object.entries(given)) {
    const rule = Object.hasOwn(rules, name) ? rules[name] : undefined
    if (rule === undefined) throw new InvalidOptionError(unknownOption(name, rules, place))
    if (value === undefined || rule.accepts(value)) continue
    throw new InvalidOptionError(`option "${name}" (${place}) takes ${rule.takes}, got ${show(value)}`)
  }
}

function unknownOption(name: string, rules: Readonly<Record<string, Rule>>, place: string): string {
  if (Object.hasOwn(PLUGIN_RULES, name)) return `option "${name}" (${place}) is for register, not for a route`
  return `unknown option "${name}" (${place}); known options: ${Object.keys(rules).join(', ')}`
}

function show(value: unknown): string {
  return inspect(value, { depth: 1, breakLength: Number.POSITIVE_INFINITY, maxStringLength: 80 })
}
