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
  if (!recorder.isRunning) return value
  if (recorder.late !== undefined) return answerLate(recorder, recorder.late, value)
  const wroteItself = reply.sent || (value === undefined && reply.raw.headersSent)
  if (wroteItself) finished(reply.raw, () => recorder.endUnrecorded())
  else if (value === undefined && isClientGone(reply)) endUnheard(recorder, reply.statusCode, () => reply.send())
  return value
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

function threw(recorder: Recorder, reply: FastifyReply, error: unknown): Promise<never> {
  if (!recorder.isRunning) throw error
  if (recorder.late !== undefined) {
    recorder.late.give(error instanceof Error ? error : new Error(String(error)))
    return sentElsewhere()
  }
  if (reply.sent || reply.raw.headersSent) recorder.endUnrecorded(error as Error)
  throw error
}
