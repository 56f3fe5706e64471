/** Step 1: the key from its header, and the caller. Every rule here is checked before the store is asked. */

import { hash } from 'node:crypto'
import { parseItem } from 'structured-headers'
import { IdempotencyError } from '../errors.ts'

const MAX_KEY_LENGTH = 255
const [SPACE, DELETE] = [0x20, 0x7f] as const

/** What is read of a raw HTTP/1 or HTTP/2 request. */
export interface RawHeaders {
  readonly headers: Readonly<Record<string, string | string[] | undefined>>
  /** Name, value, name, value, … as they came. */
  readonly rawHeaders: readonly string[]
}

/** How a route wants its keys. */
export interface KeyRules {
  /** Header name in lower case. */
  readonly header: string
  /** Accept only a structured-field string (RFC 9651 §3.3.3). */
  readonly strict: boolean
  readonly validateKey?: ((key: string) => boolean) | undefined
}

/**
 * The idempotency key of a request, decoded; undefined when the header is absent.
 * @throws IdempotencyError `FST_IDEMPOTENCY_KEY_INVALID`, naming the rule that was broken
 */
export function readKey(raw: RawHeaders, rules: KeyRules): string | undefined {
  const value = raw.headers[rules.header]
  if (value === undefined) return undefined
  // Node joins repeated lines with a comma, and two halves of a quoted string can join to a valid one.
  if (countLines(raw.rawHeaders, rules.header) > 1) throw invalid('the header was sent more than once')
  const key = decode(String(value).trim(), rules.strict)
  if (key.trim() === '') throw invalid('it is empty or blank')
  if (key.length > MAX_KEY_LENGTH) throw invalid(`it is longer than ${MAX_KEY_LENGTH} characters`)
  if (!isPrintableAscii(key)) throw invalid('it has characters outside printable ASCII')
  if (rules.validateKey !== undefined && !rules.validateKey(key)) throw invalid('this API does not accept its format')
  return key
}

function isPrintableAscii(text: string): boolean {
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i)
    if (code < SPACE || code >= DELETE) return false
  }
  return true
}

function countLines(rawHeaders: readonly string[], header: string): number {
  let lines = 0
  for (let i = 0; i < rawHeaders.length; i += 2) {
    const name = rawHeaders[i]
    if (name?.length === header.length && name.toLowerCase() === header) lines++
  }
  return lines
}

function decode(value: string, strict: boolean): string {
  if (value.startsWith('"')) return decodeQuoted(value)
  if (strict) throw invalid('it must be a structured-field string in double quotes, as in "8e03978e"')
  if (value.includes(',')) throw invalid('an unquoted value must not contain a comma')
  return value
}

// What nearly every client sends: a string without escapes, and nothing after it.
const PLAIN_STRING = /^"[ !#-[\]-~]*"$/

function decodeQuoted(value: string): string {
  if (PLAIN_STRING.test(value)) return value.slice(1, -1)
  try {
    const [text] = parseItem(value)
    return text as string
  } catch {
    throw invalid('it starts with a double quote but is not a structured-field string (RFC 9651 section 3.3.3)')
  }
}

function invalid(rule: string): IdempotencyError {
  return new IdempotencyError('FST_IDEMPOTENCY_KEY_INVALID', `The Idempotency-Key header is invalid: ${rule}.`)
}

/** The credential of callers without one. */
export const ANONYMOUS = 'anonymous'

/** What the default credential reads of a request. */
export interface CredentialHeaders {
  readonly headers: {
    readonly authorization?: string | undefined
    readonly 'x-api-key'?: string | string[] | undefined
  }
}

/**
 * The default credential: SHA-256 of `Authorization` or `x-api-key`, of both when both are there (a gateway's
 * shared token must not merge the tenants behind it), `anonymous` without either.
 */
export function credentialFromHeaders({ headers }: CredentialHeaders): string {
  const { authorization, 'x-api-key': apiKey } = headers
  if (authorization === undefined && apiKey === undefined) return ANONYMOUS
  if (apiKey === undefined) return hash('sha256', String(authorization))
  if (authorization === undefined) return hash('sha256', String(apiKey))
  return hash('sha256', `${authorization}\n${apiKey}`)
}
