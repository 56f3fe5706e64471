/** What docker-compose.yml and the Dockerfile promise, as far as it can be seen without Docker. */

import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { promisify } from 'node:util'
import { parse } from 'yaml'
import { RedisStore } from '../src/stores/redis/index.ts'
import { startDemo } from './support/demo.ts'
import { carryOut, missingSources, stagesOf } from './support/dockerfile.ts'
import { promtool } from './support/prometheus/binaries.ts'
import { newFolder } from './support/redis/processes.ts'
import { startRedis } from './support/redis/servers.ts'

interface Service {
  readonly image: string
  readonly build?: string
  readonly ports?: readonly string[]
  readonly volumes?: readonly string[]
  readonly command?: readonly string[]
  readonly environment?: Readonly<Record<string, string>>
  readonly profiles?: readonly string[]
  readonly healthcheck?: { readonly test?: readonly string[]; readonly disable?: boolean }
  readonly depends_on?: Readonly<Record<string, { readonly condition: string }>>
}

const root = join(import.meta.dirname, '..')
const yamlOf = (...path: string[]) => parse(readFileSync(join(root, ...path), 'utf8'))
const compose = yamlOf('docker-compose.yml') as { services: Record<string, Service>; volumes: Record<string, null> }
const services = Object.entries(compose.services)
const [build = [], runtime = []] = stagesOf(join(root, 'Dockerfile'))

test('nothing is published to other machines', () => {
  const ports = services.flatMap(([, service]) => service.ports ?? [])
  assert.ok(ports.length >= 6)
  for (const port of ports) assert.match(port, /^127\.0\.0\.1:\d+:\d+$/)
  const published = ports.map((port) => port.split(':')[1])
  assert.equal(new Set(published).size, published.length, 'two services want the same port')
})

test('each image is one version', () => {
  for (const [name, { image, build: isBuilt }] of services) {
    if (isBuilt === undefined) assert.match(image, /^[\w./-]+:v?\d+\.\d+(\.\d+)?(-alpine)?$/, name)
  }
  for (const [from] of [build, runtime]) assert.match(from?.text ?? '', /^node:\d+\.\d+-(slim|alpine)( AS \w+)?$/)
})

test('what is mounted is there, and volumes have names', () => {
  for (const [name, { volumes = [] }] of services) {
    for (const [source = ''] of volumes.map((volume) => volume.split(':'))) {
      const isThere = source.startsWith('./') ? existsSync(join(root, source)) : source in compose.volumes
      assert.ok(isThere, `${name} mounts ${source}`)
    }
  }
})

test('each service says when it is healthy, and is waited for until it is', () => {
  for (const [name, { healthcheck, build: isBuilt, profiles = [], depends_on: needed = {} }] of services) {
    if (!profiles.includes('traffic')) assert.ok(isBuilt ?? healthcheck?.test, `${name} has no health check`)
    for (const [other, { condition }] of Object.entries(needed)) {
      assert.ok(other in compose.services, `${name} waits for ${other}`)
      assert.equal(condition, 'service_healthy')
    }
  }
})

test('Prometheus scrapes services that exist, by ports that they listen on, and Grafana asks Prometheus', () => {
  const listening = services.flatMap(([name, { ports = [] }]) => ports.map((port) => `${name}:${port.split(':')[2]}`))
  for (const file of readdirSync(join(root, 'grafana', 'targets'))) {
    for (const target of yamlOf('grafana', 'targets', file)[0].targets) assert.ok(listening.includes(target), target)
  }
  const [{ url }] = yamlOf('grafana', 'provisioning', 'datasources', 'prometheus.yml').datasources
  assert.ok(listening.includes(new URL(url).host))
})

test('promtool finds no fault with the configuration of Prometheus', async () => {
  assert.match(await promtool('check', 'config', join(root, 'grafana', 'prometheus.yml')), /1 rule files found/)
})

test('Redis as it is started there satisfies the start-up checks of a strict store', async (t) => {
  const [, ...args] = compose.services['redis']?.command ?? []
  const redis = await startRedis({ args })
  t.after(() => redis.stop())
  const store = new RedisStore({ url: redis.url, strict: true })
  t.after(() => store.close())
  await store.check()
  assert.equal(await redis.cli('config', 'get', 'appendfsync'), 'appendfsync\nalways')
})

test('docker compose takes the file, where there is one', async (t) => {
  const docker = (...args: string[]) => promisify(execFile)('docker', ['compose', ...args], { cwd: root })
  const hasCompose = await docker('version').then(
    () => true,
    () => false,
  )
  if (!hasCompose) return t.diagnostic('docker compose is not installed: the file was checked by the other tests only')
  const { stdout } = await docker('--profile', '*', 'config', '--services')
  assert.deepEqual(stdout.trim().split('\n').sort(), services.map(([name]) => name).sort())
})

test('the image runs as an unprivileged user, and knows whether it is healthy', () => {
  const textOf = (name: string) => runtime.find((instruction) => instruction.name === name)?.text
  assert.equal(textOf('USER'), 'node')
  assert.match(textOf('HEALTHCHECK') ?? '', /http:\/\/127\.0\.0\.1:3000\/healthz/)
  assert.equal(textOf('CMD'), '["node", "dist/server.js"]')
})

test('the context that Docker gets has all that the Dockerfile copies', () => {
  assert.deepEqual(missingSources(build, root), [])
  const sent = readFileSync(join(root, '.dockerignore'), 'utf8').split('\n')
  const copied = build.filter(({ name }) => name === 'COPY').flatMap(({ text }) => text.split(' ').slice(0, -1))
  for (const source of copied) assert.ok(sent.includes(`!${source}`), `.dockerignore keeps ${source} from Docker`)
})

test('the steps of the Dockerfile make a demo and a load script that run', { timeout: 120_000 }, async (t) => {
  const folder = newFolder('image')
  await carryOut(build, root, folder)
  const app = join(folder, 'app')
  const demo = await startDemo({}, [join(app, 'dist', 'server.js')])
  t.after(() => demo.kill())
  const traffic = [join(app, 'dist', 'traffic.js'), '--url', demo.url, '--seconds', '1']
  const { stdout } = await promisify(execFile)(process.execPath, traffic)
  assert.match(stdout, /^double executions +0$/m)
})
