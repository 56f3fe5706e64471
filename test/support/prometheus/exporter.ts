/** Stands for redis_exporter, which is no Debian package: what the dashboards take from it. */

import { once } from 'node:events'
import { createServer } from 'node:http'
import { Counter, Gauge, Registry } from 'prom-client'

/** Serves it on a free loopback port; `target` is what Prometheus scrapes. Each scrape is a second of some load. */
export async function startRedisExporter(): Promise<{ target: string; stop(): void }> {
  const { registry, tick } = redisExporter()
  const server = createServer(async (_request, response) => {
    tick()
    response.setHeader('content-type', registry.contentType)
    response.end(await registry.metrics())
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  const { port } = server.address() as { port: number }
  return { target: `127.0.0.1:${port}`, stop: () => void server.close() }
}

/** Its metrics, and what happens in a second. */
export function redisExporter(): { registry: Registry; tick(): void } {
  const registry = new Registry()
  const shared = { help: 'fixture', registers: [registry] }
  const clients = new Gauge({ ...shared, name: 'redis_connected_clients' })
  const keys = new Gauge({ ...shared, name: 'redis_db_keys', labelNames: ['db'] })
  const commands = new Counter({ ...shared, name: 'redis_commands_total', labelNames: ['cmd'] })
  return {
    registry,
    tick() {
      clients.set(4)
      keys.inc({ db: 'db0' }, 20)
      commands.inc({ cmd: 'set' }, 44)
      commands.inc({ cmd: 'evalsha' }, 24)
      commands.inc({ cmd: 'info' }, 2)
    },
  }
}
