/** What the two Redis stores accept. */

import {
  checkOptions,
  isBetween,
  isBoolean,
  isName,
  isObject,
  isString,
  isTimer,
  isWhole,
  type Rule,
  refuse,
} from '../option-rules.ts'

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

function isListOf(value: unknown, accepts: (item: unknown) => boolean): boolean {
  return Array.isArray(value) && value.length > 0 && value.every(accepts)
}

function isAddress(value: unknown): boolean {
  const { host, port } = Object(value) as { host?: unknown; port?: unknown }
  return isName.accepts(host) && isBetween(port, 1, 65_535)
}

function isRedisUrl(text: string): boolean {
  return /^rediss?:\/\//i.test(text) && URL.canParse(text)
}
