/** `npm start`: the payments API on PORT and HOST, with the store of IDEMPOTENCY_STORE and leases of LEASE_MS. */

import { randomUUID } from 'node:crypto'
import { createPaymentsApi } from './payments.ts'
import { openStore } from './stores.ts'
import { transcript } from './transcript.ts'

const { HOST = '127.0.0.1', PORT = '3000', LOG_LEVEL = 'warn' } = process.env
const { IDEMPOTENCY_STORE = 'memory:', LEASE_MS = '30000' } = process.env

try {
  const store = await openStore(IDEMPOTENCY_STORE)
  const app = await createPaymentsApi({ store, leaseMs: Number(LEASE_MS), logger: { level: LOG_LEVEL } })
  const url = await app.listen({ host: HOST, port: portOf(PORT) })
  const stop = () => {
    app.close()
    // Fastify closes the connections that are idle now; the others are idle once their request is answered.
    setInterval(() => app.server.closeIdleConnections(), 100).unref()
  }
  // `once`: a second Ctrl-C does not wait for the requests that are still running.
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, stop)
  console.log(`Payments API on ${url}, idempotency records in: ${store.name}. Paste these into another shell:`)
  console.log(transcript(url, randomUUID()))
  console.log(`Also: POST /slow?ms=3000, twice at once (the second: 409), and POST /flaky (502, and 201 on the retry).`)
} catch (error) {
  console.error(explain(error as NodeJS.ErrnoException))
  process.exit(1)
}

function portOf(text: string): number {
  const port = Number(text)
  if (text.trim() !== '' && Number.isInteger(port) && port >= 0 && port <= 65_535) return port
  throw new Error(`PORT takes a whole number from 0 to 65535, got ${JSON.stringify(text)}`)
}

function explain(error: NodeJS.ErrnoException): string {
  if (error.code !== 'EADDRINUSE') return error.message
  return `Port ${PORT} on ${HOST} is in use by another program. Pick another one: PORT=3001 npm start`
}
