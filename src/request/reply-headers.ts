/** Headers and trailers of a reply, read where Fastify keeps them: it tells of them only to who knows their names. */

import type { FastifyReply } from 'fastify'
import type { OutgoingHeaders } from '../response.ts'

/** Reads a property of replies whose symbol has this description; undefined where a Fastify release has none. */
function hiddenProperty<Value>(description: string): (reply: FastifyReply) => Value | undefined {
  let symbol: symbol | undefined
  return (reply) => {
    symbol ??= Object.getOwnPropertySymbols(reply).find((own) => own.description === description)
    return symbol && (reply as unknown as Record<symbol, Value>)[symbol]
  }
}

const ownHeaders = hiddenProperty<OutgoingHeaders>('fastify.reply.headers')
const ownTrailers = hiddenProperty<object | null>('fastify.reply.trailers')

const NONE: OutgoingHeaders = Object.freeze({})

/**
 * A copy of the headers that a reply has now. Fastify's `getHeaders()` makes three objects for it, twice per request;
 * this makes one, or none, where Fastify's own object can be found and nobody has written past it.
 */
export function headersNow(reply: FastifyReply): OutgoingHeaders {
  const own = ownHeaders(reply)
  if (own === undefined || reply.raw.getHeaderNames().length > 0) return reply.getHeaders()
  for (const _ in own) return { ...own }
  return NONE
}

/** Has the reply trailers? They are functions of the reply, computed while it is sent, so no record can hold them. */
export function hasTrailers(reply: FastifyReply): boolean {
  return (ownTrailers(reply) ?? null) !== null
}
