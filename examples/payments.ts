/** A payments API with safe retries, as a user of the plugin would write it. */

import { setTimeout as sleep } from 'node:timers/promises'
import createError from '@fastify/error'
import fastify, { type FastifyInstance, type FastifyRequest, type FastifyServerOptions } from 'fastify'
import idempotency, { type IdempotencyStore } from 'fastify-idempotency'
import { Registry } from 'prom-client'
import { type Charge, Ledger } from './ledger.ts'

declare module 'fastify' {
  interface FastifyRequest {
    /** Who is calling: the account that the API key belongs to. */
    account: string
  }
}

export interface PaymentsApiOptions {
  store: IdempotencyStore
  /** How long a request is protected without a sign of life from its process, in ms. @default 30_000 */
  leaseMs?: number
  logger?: NonNullable<FastifyServerOptions['logger']>
}

const ACCOUNTS: ReadonlyMap<unknown, string> = new Map([
  ['demo-ada', 'acct_ada'],
  ['demo-grace', 'acct_grace'],
])

const UnknownApiKey = createError('UNKNOWN_API_KEY', 'The x-api-key header is missing or unknown.', 401)
const PaymentNotFound = createError('PAYMENT_NOT_FOUND', 'There is no payment %s.', 404)
const RefundTooLarge = createError('REFUND_TOO_LARGE', 'Only %d is left to refund.', 422)
const AcquirerDown = createError('ACQUIRER_DOWN', 'The acquirer did not answer. Retry with the same key.', 502)

/** The API, not listening yet. */
export async function createPaymentsApi(options: PaymentsApiOptions): Promise<FastifyInstance> {
  const { store, leaseMs = 30_000, logger = false } = options
  const app = fastify({ logger })
  const metrics = new Registry()
  await app.register(idempotency, {
    store,
    metrics,
    leaseMs,
    required: true,
    credential: (request) => request.account, // set by `authenticate` below; a stable id outlives a rotated key
  })
  app.get('/healthz', () => ({ status: 'ok' }))
  app.get('/metrics', (_request, reply) => {
    reply.type(metrics.contentType)
    return metrics.metrics()
  })
  await app.register(payments)
  return app
}

async function payments(api: FastifyInstance): Promise<void> {
  const ledger = new Ledger()
  api.decorateRequest('account', '')
  api.addHook('onRequest', authenticate)

  api.post<{ Body: PaymentBody }>('/payments', { schema: { body: paymentBody } }, (request, reply) => {
    const payment = charge(ledger, request)
    reply.code(201).header('location', `/payments/${payment.id}`)
    return payment
  })

  api.get('/payments', (request) => {
    const charges = ledger.chargesOf(request.account)
    return { count: charges.length, charges }
  })

  api.get<{ Params: { id: string } }>('/payments/:id', (request) => findPayment(ledger, request))

  api.post<{ Params: { id: string }; Body: RefundBody }>(
    '/payments/:id/refunds',
    { schema: { body: refundBody } },
    (request, reply) => {
      const payment = findPayment(ledger, request)
      const left = payment.amount - payment.refunded
      if (request.body.amount > left) throw new RefundTooLarge(left)
      reply.code(201)
      return ledger.refund(payment, request.body.amount)
    },
  )

  // Takes its time: send it twice at once, and the second answer is 409.
  api.post<{ Body: PaymentBody; Querystring: { ms: number } }>(
    '/slow',
    { schema: { body: paymentBody, querystring: slowQuery } },
    async (request, reply) => {
      await sleep(request.query.ms)
      request.idempotency?.signal.throwIfAborted() // the lease is lost: another attempt may be running
      reply.code(201)
      return charge(ledger, request)
    },
  )

  // Fails on the first attempt with a key; the retry takes the key over, with a higher fence, and succeeds.
  api.post<{ Body: PaymentBody }>('/flaky', { schema: { body: paymentBody } }, (request, reply) => {
    if (request.idempotency?.fence === 1) throw new AcquirerDown()
    reply.code(201)
    return charge(ledger, request)
  })
}

async function authenticate(request: FastifyRequest): Promise<void> {
  const account = ACCOUNTS.get(request.headers['x-api-key'])
  if (account === undefined) throw new UnknownApiKey()
  request.account = account
}

function charge(ledger: Ledger, request: FastifyRequest<{ Body: PaymentBody }>): Charge {
  // What a payment provider takes as its own idempotency key: the same on every retry of this request.
  const reference = request.idempotency?.derive('psp')
  return ledger.charge({ ...request.body, account: request.account, reference })
}

function findPayment(ledger: Ledger, { account, params }: FastifyRequest<{ Params: { id: string } }>): Charge {
  const payment = ledger.chargesOf(account).find(({ id }) => id === params.id)
  if (payment === undefined) throw new PaymentNotFound(params.id)
  return payment
}

interface PaymentBody {
  /** In the smallest unit of the currency: 4200 is 42.00 EUR. */
  amount: number
  currency: string
}

const amount = { type: 'integer', minimum: 1, maximum: 1_000_000_00 }

const paymentBody = {
  type: 'object',
  required: ['amount', 'currency'],
  additionalProperties: false,
  properties: { amount, currency: { type: 'string', pattern: '^[A-Z]{3}$' } },
}

interface RefundBody {
  amount: number
}

const refundBody = { type: 'object', required: ['amount'], additionalProperties: false, properties: { amount } }

const slowQuery = {
  type: 'object',
  properties: { ms: { type: 'integer', minimum: 0, maximum: 30_000, default: 3_000 } },
}
