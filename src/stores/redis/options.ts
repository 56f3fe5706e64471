/** What the two Redis stores accept, and the one place where wrong options of theirs are refused. */

import { inspect } from 'node:util'
import { InvalidOptionError } from '../../errors.ts'

/** What an option takes, in words and as a test. */
export interface Rule {
  readonly takes: string
  readonly accepts: (value: unknown) => boolean
}

export const isBoolean: Rule = { takes: 'true or false', accepts: (value) => typeof value === 'boolean' }
const isString: Rule = { takes: 'a string', accepts: (value) => typeof value === 'string' }
const isName: Rule = {
  takes: 'a string that is not empty',
  accepts: (value) => typeof value === 'string' && value !== '',
}
const isObject: Rule = { takes: 'an object', accepts: (value) => typeof value === 'object' && value !== null }

/** A whole number within these bounds. */
function isWhole(least: number, most = Number.MAX_SAFE_INTEGER, what = 'a whole number'): Rule {
  const bounds = most === Number.MAX_SAFE_INTEGER ? `of at least ${least}` : `from ${least} to ${most}`
  return { takes: `${what} ${bounds}`, accepts: (value) => isBetween(value, least, most) }
}

/** How long to wait: what a timer can take, in ms. */
export const isTimer = isWhole(1, 2 ** 31 - 1, 'a whole number of milliseconds')

/** How to log in, and encryption: rules of `connection`. */
const CONNECTION_RULES: Readonly<Record<string, Rule>> = {
  username: isName,
  password: isString,
  db: isWhole(0),
  tls: isObject,
  connectionName: isName,
  sentinelUsername: isName,
  sentinelPassword: isString,
  sentinelTls: isObject,
}

const CLIENT_METHODS = ['setBuffer', 'defineCommand', 'info', 'pipeline', 'on', 'off'] as const

/** Where Redis is: each name alone says so. */
const PLACES = ['client', 'url', 'sentinels', 'nodes'] as const

const STORE_RULES: Readonly<Record<string, Rule>> = {
  client: {
    takes: 'a Redis or Cluster of ioredis',
    accepts: (value) => CLIENT_METHODS.every((method) => typeof Object(value)[method] === 'function'),
  },
  url: {
    takes: 'a URL that begins with redis:// or rediss://, or the path of a Unix socket',
    accepts: (value) => typeof value === 'string' && (value.startsWith('/') || isRedisUrl(value)),
  },
  sentinels: { takes: 'an array of { host, port }, not empty', accepts: (value) => isListOf(value, isAddress) },
  name: isName,
  nodes: {
    takes: 'an array of { host, port } or URLs, not empty',
    accepts: (value) => isListOf(value, (node) => isName.accepts(node) || isAddress(node)),
  },
  connection: isObject,
  keyPrefix: isString,
  deflateFrom: {
    takes: 'a number of bytes of at least 0, or Infinity',
    accepts: (value) => typeof value === 'number' && value >= 0,
  },
  waitReplicas: isWhole(0),
  waitTimeoutMs: isTimer, // WAIT takes 0 for ever
  strict: isBoolean,
}

/**
 * Checks the options of a `RedisStore`.
 * @returns them, without those that are undefined
 * @throws InvalidOptionError naming the option and what it takes
 */
export function checkStoreOptions<Options extends object>(options: Options): Options {
  const given = checkOptions('RedisStore', options, STORE_RULES) as Record<string, unknown>
  const places = PLACES.filter((name) => name in given)
  if (places.length !== 1) {
    const found = places.length === 0 ? 'none of them' : places.join(' and ')
    refuse(`RedisStore: takes exactly one of ${PLACES.join(', ')}, got ${found}`)
  }
  const [place] = places
  if ('name' in given !== (place === 'sentinels')) {
    refuse('RedisStore: options "sentinels" and "name" (of the master) go together')
  }
  if ('connection' in given) checkConnection(given['connection'] as object, place as string)
  return given as Options
}

function checkConnection(connection: object, place: string): void {
  const given = checkOptions('RedisStore, connection', connection, CONNECTION_RULES) as Record<string, unknown>
  if (place === 'client') refuse('RedisStore: option "connection" is for a client that the store builds')
  if (place === 'nodes' && given['db'])
    refuse('RedisStore: option "connection.db" is 0 in a Cluster, which has no others')
  const [name] = Object.keys(given).filter((each) => each.startsWith('sentinel'))
  if (name && place !== 'sentinels') refuse(`RedisStore: option "connection.${name}" goes with "sentinels"`)
}

/**
 * Checks names and values of options; one that is undefined counts as absent.
 * @param owner whose they are, for the message
 * @returns them, without those that are undefined
 * @throws InvalidOptionError naming the option and what it takes
 */
export function checkOptions<Options extends object>(
  owner: string,
  options: Options,
  rules: Readonly<Record<string, Rule>>,
  required: readonly string[] = [],
): Options {
  if (!isObject.accepts(options)) refuse(`${owner} takes an object of options, got ${typeof options}`)
  const given = Object.entries(options).filter(([name, value]) => value !== undefined || !Object.hasOwn(rules, name))
  for (const [name, value] of given) {
    const rule = Object.hasOwn(rules, name) ? rules[name] : undefined
    if (rule === undefined)
      refuse(`${owner}: unknown option "${name}"; known options: ${Object.keys(rules).join(', ')}`)
    if (!rule.accepts(value)) refuse(`${owner}: option "${name}" takes ${rule.takes}, got ${show(name, value)}`)
  }
  const missing = required.find((name) => given.every(([each]) => each !== name))
  if (missing) refuse(`${owner}: option "${missing}" is missing; it takes ${rules[missing]?.takes}`)
  return Object.fromEntries(given) as Options
}

function refuse(message: string): never {
  throw new InvalidOptionError(message)
}

function isListOf(value: unknown, accepts: (item: unknown) => boolean): boolean {
  return Array.isArray(value) && value.length > 0 && value.every(accepts)
}

function isAddress(value: unknown): boolean {
  const { host, port } = Object(value) as { host?: unknown; port?: unknown }
  return isName.accepts(host) && isBetween(port, 1, 65_535)
}

function isBetween(value: unknown, least: number, most: number): boolean {
  return Number.isSafeInteger(value) && (value as number) >= least && (value as number) <= most
}

function isRedisUrl(text: string): boolean {
  return /^rediss?:\/\//i.test(text) && URL.canParse(text)
}

const MAY_HOLD_PASSWORDS = new Set(['url', 'nodes', 'connection', 'password', 'sentinelPassword'])

// What may hold a password must not get into a log.
function show(name: string, value: unknown): string {
  if (MAY_HOLD_PASSWORDS.has(name)) return Array.isArray(value) ? 'another array' : `another ${typeof value}`
  return inspect(value, { depth: 1, breakLength: Number.POSITIVE_INFINITY, maxStringLength: 80 })
}
