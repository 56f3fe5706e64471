/** The measured side of a bench: routes to send payments to, and CPU readings over IPC. */

import fastify, { type FastifyInstance } from 'fastify'
import idempotency, { type IdempotencyOptions } from 'fastify-idempotency'

/** What every measured route answers. */
export const capture = () => ({ id: 'pay_1', amount: 1000, currency: 'eur', status: 'captured' })

/** A route of its own app, bare or with the plugin; resolves to its address. */
export async function start(
  options?: IdempotencyOptions,
  addRoute: (app: FastifyInstance) => void = (app) => app.post('/payments', async () => capture()),
): Promise<string> {
  // Connections are idle while other variants are measured.
  const app: FastifyInstance = fastify({ keepAliveTimeout: 3_600_000 })
  if (options !== undefined) await app.register(idempotency, options)
  addRoute(app)
  return app.listen({ host: '127.0.0.1', port: 0 })
}

/** Starts the one of the servers that the bench has asked for, and answers its readings until it goes away. */
export async function serve(servers: Readonly<Record<string, () => Promise<string>>>): Promise<void> {
  const [name = ''] = process.argv.slice(2)
  const url = await servers[name]?.()
  if (url === undefined) throw new Error(`there is no server ${name}`)
  process.on('message', () => {
    const { user, system } = process.cpuUsage()
    process.send?.({ cpuUs: user + system })
  })
  process.on('disconnect', () => process.exit())
  process.send?.({ url })
}
