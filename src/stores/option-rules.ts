/** What options of stores take, and the one place where wrong ones are refused. */

import { inspect } from 'node:util'
import { InvalidOptionError } from '../errors.ts'

/** What an option takes, in words and as a test. */
export interface Rule {
  readonly takes: string
  readonly accepts: (value: unknown) => boolean
}

export const isBoolean: Rule = { takes: 'true or false', accepts: (value) => typeof value === 'boolean' }
export const isString: Rule = { takes: 'a string', accepts: (value) => typeof value === 'string' }
export const isName: Rule = {
  takes: 'a string that is not empty',
  accepts: (value) => typeof value === 'string' && value !== '',
}
export const isObject: Rule = { takes: 'an object', accepts: (value) => typeof value === 'object' && value !== null }

/** A whole number within these bounds. */
export function isWhole(least: number, most = Number.MAX_SAFE_INTEGER, what = 'a whole number'): Rule {
  const bounds = most === Number.MAX_SAFE_INTEGER ? `of at least ${least}` : `from ${least} to ${most}`
  return { takes: `${what} ${bounds}`, accepts: (value) => isBetween(value, least, most) }
}

/** Timers over this fire at once. */
export const LONGEST_TIMER_MS = 2 ** 31 - 1

/** How long to wait: what a timer can take, in ms. */
export const isTimer = isWhole(1, LONGEST_TIMER_MS, 'a whole number of milliseconds')

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

/** @throws InvalidOptionError always */
export function refuse(message: string): never {
  throw new InvalidOptionError(message)
}

export function isBetween(value: unknown, least: number, most: number): boolean {
  return Number.isSafeInteger(value) && (value as number) >= least && (value as number) <= most
}

const MAY_HOLD_PASSWORDS = new Set(['url', 'nodes', 'connection', 'password', 'sentinelPassword'])

// What may hold a password must not get into a log.
function show(name: string, value: unknown): string {
  if (MAY_HOLD_PASSWORDS.has(name)) return Array.isArray(value) ? 'another array' : `another ${typeof value}`
  return inspect(value, { depth: 1, breakLength: Number.POSITIVE_INFINITY, maxStringLength: 80 })
}
