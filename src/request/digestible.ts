/** Body members for which JSON has no word, in a form that is the same for every retry. */

import { hash } from 'node:crypto'

/** A file or field as `@fastify/multipart` attaches it; its stream and counters differ between equal uploads. */
interface MultipartPart {
  readonly fieldname: string
  readonly fields: unknown
  readonly value?: unknown
  readonly filename?: string
  readonly mimetype?: string
  readonly _buf?: Uint8Array
}

/**
 * The body with bytes (at the top level or in a list there) replaced by their digest, and multipart parts by what the
 * client sent in them; any other body comes back as it is.
 */
export function digestible(body: object): object {
  for (const name in body) {
    if (isForeign(body[name as keyof object])) return replaceMembers(body)
  }
  return body
}

function replaceMembers(body: object): object {
  const replaced = Object.entries(body).map(([name, member]) => [name, replace(member)])
  return Array.isArray(body) ? replaced : Object.fromEntries(replaced)
}

function isForeign(member: unknown): boolean {
  if (typeof member !== 'object' || member === null) return false
  if (Array.isArray(member)) return member.some(isForeign)
  return ArrayBuffer.isView(member) || isMultipartPart(member)
}

function isMultipartPart(member: object): member is MultipartPart {
  return 'fieldname' in member && 'fields' in member
}

function replace(member: unknown): unknown {
  if (Array.isArray(member)) return member.map(replace)
  if (typeof member !== 'object' || member === null) return member
  if (ArrayBuffer.isView(member)) return { sha256: digestOf(member) }
  if (!isMultipartPart(member)) return member
  const { value, filename, mimetype, _buf } = member
  return { value, filename, mimetype, sha256: _buf && digestOf(_buf) }
}

function digestOf(view: ArrayBufferView): string {
  return hash('sha256', new Uint8Array(view.buffer, view.byteOffset, view.byteLength), 'base64url')
}
