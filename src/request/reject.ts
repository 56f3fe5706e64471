/** How a request that must not run is answered. */

import type { FastifyReply } from 'fastify'
import { IdempotencyError, problemOf } from '../errors.ts'
import type { ResolvedRouteOptions } from '../options.ts'

/**
 * Answers with a problem document, or leaves it to the app's error handler.
 * @throws the error itself with `rejectWith: 'throw'`, and whatever is not an IdempotencyError
 */
export function reject(error: unknown, reply: FastifyReply, options: ResolvedRouteOptions): void {
  if (!(error instanceof IdempotencyError)) throw error
  const { documentationUrl, rejectWith } = options
  if (documentationUrl !== undefined) reply.header('link', `<${documentationUrl}>; rel="describedby"; type="text/html"`)
  if (rejectWith === 'throw') throw error
  reply.code(error.statusCode).headers(error.headers).header('content-type', 'application/problem+json')
  // As bytes: a string would get a charset appended to its type, and an object the route's response schema.
  reply.send(Buffer.from(JSON.stringify(problemOf(error, documentationUrl))))
}
