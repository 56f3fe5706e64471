/** The production examples, as processes of their own on real servers. */

import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { type TestContext, test } from 'node:test'
import { createTable } from '../src/stores/dynamodb/index.ts'
import { clientOf } from './support/dynamodb/client.ts'
import { startDynamoDB } from './support/dynamodb/server.ts'
import { startSentinel } from './support/redis/sentinel.ts'

/** Starts `examples/<name>.ts`; resolves once it listens. */
async function startExample(t: TestContext, name: string, env: Record<string, string>) {
  const child = spawn(process.execPath, ['--import', 'tsx', `examples/${name}.ts`], {
    env: { ...process.env, PORT: '0', ...env },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  t.after(() => child.kill('SIGKILL'))
  const exited = once(child, 'exit')
  let printed = ''
  for await (const chunk of child.stdout.iterator({ destroyOnReturn: false })) {
    printed += chunk
    if (printed.includes('Server listening at http://127.0.0.1')) break
  }
  const [url] = /http:\/\/127\.0\.0\.1:\d+/.exec(printed) ?? []
  assert.ok(url, `${name} did not start:\n${printed}`)
  return {
    url,
    async stop(): Promise<unknown> {
      child.stdout.resume()
      child.kill('SIGTERM')
      const [code] = await exited
      return code
    },
  }
}

async function pay(url: string, key: string) {
  const response = await fetch(`${url}/payments`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'x-api-key': 'key-of-acme', 'idempotency-key': key },
    body: '{"amount":100}',
  })
  return {
    status: response.status,
    isReplayed: response.headers.get('idempotent-replayed') === 'true',
    body: await response.text(),
  }
}

/** A payment and its retry, the retry after a restart. */
async function payOnceAcrossRestarts(t: TestContext, name: string, env: Record<string, string>) {
  const before = await startExample(t, name, env)
  const first = await pay(before.url, 'key-1')
  assert.deepEqual([first.status, first.isReplayed], [201, false])
  assert.equal(await before.stop(), 0)
  const after = await startExample(t, name, env)
  assert.deepEqual(await pay(after.url, 'key-1'), { ...first, isReplayed: true })
  assert.equal(await after.stop(), 0)
}

test('examples/redis.ts starts strictly behind Sentinel, and replays after a restart', {
  timeout: 60_000,
}, async (t) => {
  const args = ['--min-replicas-to-write', '1', '--min-replicas-max-lag', '1', '--maxmemory-policy', 'noeviction']
  const topology = await startSentinel({ aof: 'always', args })
  t.after(() => topology.stop())
  const REDIS_SENTINELS = topology.sentinels.map(({ host, port }) => `${host}:${port}`).join(',')
  await payOnceAcrossRestarts(t, 'redis', { REDIS_SENTINELS, REDIS_MASTER: topology.name })
})

test('examples/dynamodb.ts replays after a restart', { timeout: 60_000 }, async (t) => {
  const { endpoint, stop } = await startDynamoDB()
  t.after(stop)
  const client = clientOf(endpoint)
  t.after(() => client.destroy())
  await createTable(client, { tableName: 'examples', index: true })
  await payOnceAcrossRestarts(t, 'dynamodb', {
    IDEMPOTENCY_TABLE: 'examples',
    DYNAMODB_ENDPOINT: endpoint,
    AWS_REGION: 'us-east-1',
    AWS_ACCESS_KEY_ID: 'test',
    AWS_SECRET_ACCESS_KEY: 'test',
  })
})
