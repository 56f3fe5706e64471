/** Runs the handler of a claimed request, and sees to it that its claim ends however the handler ends. */

import { finished } from 'node:stream'
import type { FastifyInstance, FastifyReply, FastifyRequest, RouteHandlerMethod } from 'fastify'
import type { LateAnswer } from './late.ts'
import type { Recorder } from './record.ts'

/** Calls the handler as Fastify would. What this resolves or rejects with is for Fastify to send. */
export async function runHandler(
  recorder: Recorder,
  handler: RouteHandlerMethod,
  server: FastifyInstance,
  request: FastifyRequest,
  reply: FastifyReply,
): Promise<unknown> {
  try {
    const result: unknown = handler.call(server, request, reply)
    if (result === undefined) return untilSent(recorder, reply)
    return returned(recorder, reply, await result)
  } catch (error) {
    return threw(recorder, reply, error)
  }
}

/** A promise that never settles tells Fastify that the reply is, or will be, sent by someone else. */
export function sentElsewhere(): Promise<never> {
  return new Promise(() => {})
}

/** A callback-style handler: `reply.send()` comes whenever it comes, or the handler writes to the socket itself. */
function untilSent(recorder: Recorder, reply: FastifyReply): Promise<never> {
  finished(reply.raw, () => {
    const wroteItself = reply.sent || reply.raw.headersSent
    if (wroteItself && recorder.late === undefined) recorder.endUnrecorded()
  })
  return sentElsewhere()
}

function returned(recorder: Recorder, reply: FastifyReply, value: unknown): unknown {
  if (!recorder.isRunning) return ignored(reply, value)
  if (recorder.late !== undefined) return answerLate(recorder, recorder.late, value)
  const wroteItself = reply.sent || (value === undefined && reply.raw.headersSent)
  if (wroteItself) recorder.endUnrecordedWhenSent()
  else if (value === undefined && isClientGone(reply)) endUnheard(recorder, reply.statusCode, () => reply.send())
  recorder.handlerReturned()
  return value
}

// The handler has sent its answer before: what it returns is a second one, which Fastify would refuse as well.
function ignored(reply: FastifyReply, value: unknown): Promise<never> {
  if (value !== undefined)
    reply.log.warn('idempotency: the reply was already sent; what the handler returned is ignored')
  return sentElsewhere()
}

function answerLate(recorder: Recorder, late: LateAnswer, value: unknown): Promise<never> {
  if (value !== undefined) late.give(value)
  else if (!late.isGiven) endUnheard(recorder, late.statusCode, () => late.give(undefined))
  return sentElsewhere()
}

// When nobody listens any more a handler that returns nothing may have succeeded or given up. Only a 204 is an
// answer; for anything else an empty success would be a guess.
function endUnheard(recorder: Recorder, statusCode: number, send: () => void): void {
  if (statusCode === 204) send()
  else recorder.endUnrecorded()
}

// As Fastify decides whether to send an empty reply for a handler that returned nothing.
function isClientGone({ request, raw }: FastifyReply): boolean {
  return request.raw.aborted || raw.destroyed || request.raw.socket === null || request.raw.socket.destroyed
}

function threw(recorder: Recorder, reply: FastifyReply, reason: unknown): Promise<never> {
  const error = reason instanceof Error ? reason : new Error(String(reason))
  if (!recorder.isRunning) {
    reply.log.error({ err: reason }, 'idempotency: the handler failed after it had sent its reply')
    return sentElsewhere()
  }
  if (recorder.late !== undefined) {
    recorder.late.give(error)
    return sentElsewhere()
  }
  // Once the response has been ended the client has its answer; an error after that does not take it back. Otherwise
  // the error's reply is recorded as any other, unless an error handler writes it to the raw response.
  if (reply.raw.writableEnded) recorder.endUnrecorded()
  else recorder.endUnrecordedWhenSent(error)
  throw reason
}
