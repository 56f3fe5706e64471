/** The headers of a reply at one moment. */

import type { FastifyReply } from 'fastify'
import type { OutgoingHeaders } from '../response.ts'

const NONE: OutgoingHeaders = Object.freeze({})

let headersOfReply: symbol | undefined

/**
 * A copy of the headers that a reply has now. Fastify's `getHeaders()` makes three objects for it, twice per request;
 * this makes one, or none, where Fastify's own object can be found and nobody has written past it.
 */
export function headersNow(reply: FastifyReply): OutgoingHeaders {
  headersOfReply ??= Object.getOwnPropertySymbols(reply).find(
    ({ description }) => description === 'fastify.reply.headers',
  )
  if (headersOfReply === undefined || reply.raw.getHeaderNames().length > 0) return reply.getHeaders()
  const own = (reply as unknown as Record<symbol, OutgoingHeaders>)[headersOfReply]
  for (const _ in own) return { ...own }
  return NONE
}
