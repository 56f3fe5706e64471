/** The scoped key: whose key it is, where, and which. */

import { hash } from 'node:crypto'

const MAX_CREDENTIAL_BYTES = 128
const [SPACE, HASH, PERCENT, DELETE] = [0x20, 0x23, 0x25, 0x7f] as const

/**
 * `idem#v1#<credential>#<METHOD>:<route pattern>#<key>`. Parts are percent-encoded, so that no two different
 * triples make one key; a credential over 128 bytes is replaced by its SHA-256.
 */
export function scopedKey(credential: string, route: string, key: string): string {
  return `idem#v1#${encodeCredential(credential)}#${encodePart(route)}#${encodePart(key)}`
}

/** A credential as it stands in a scoped key. */
export function encodeCredential(credential: string): string {
  // No UTF-16 unit is more than three bytes of UTF-8, so most credentials need not be measured.
  const isShort = credential.length * 3 <= MAX_CREDENTIAL_BYTES || Buffer.byteLength(credential) <= MAX_CREDENTIAL_BYTES
  return isShort ? encodePart(credential) : hash('sha256', credential)
}

/** Percent-encodes `#`, `%`, spaces, control and non-ASCII characters; everything else stays readable. */
export function encodePart(part: string): string {
  if (isUnreserved(part)) return part
  return part.replace(/[^!-~]|[#%]/gu, encodeCharacter)
}

// Nearly every part. A loop over so few characters is several times as fast as a regular expression.
function isUnreserved(part: string): boolean {
  for (let i = 0; i < part.length; i++) {
    const code = part.charCodeAt(i)
    if (code <= SPACE || code >= DELETE || code === HASH || code === PERCENT) return false
  }
  return true
}

function encodeCharacter(character: string): string {
  // Half a surrogate pair has no UTF-8; `%uXXXX` keeps it apart from everything else, as a plain % is always encoded.
  if (!character.isWellFormed()) return `%u${character.charCodeAt(0).toString(16)}`
  return encodeURIComponent(character)
}
