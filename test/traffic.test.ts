/** `npm run demo:traffic` finds no double execution behind the plugin, and does find those of a server without it. */

import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import fastify from 'fastify'
import { startDemo } from './support/demo.ts'
import { startRedis } from './support/redis/servers.ts'

interface Run {
  readonly code: number | null
  /** The summary's rows. */
  readonly counts: Readonly<Record<string, number>>
  readonly stdout: string
  readonly stderr: string
}

async function traffic(...args: string[]): Promise<Run> {
  const child = spawn(process.execPath, ['--import', 'tsx', 'examples/traffic.ts', ...args])
  const printed = { stdout: '', stderr: '' }
  for (const stream of ['stdout', 'stderr'] as const) {
    child[stream].setEncoding('utf8').on('data', (text) => {
      printed[stream] += text
    })
  }
  const [code] = await once(child, 'close')
  const rows = [...printed.stdout.matchAll(/^(.*?) +(\d+)$/gm)].map(([, name = '', count]) => [name, Number(count)])
  return { code, counts: Object.fromEntries(rows), ...printed }
}

test('every kind of bad client is seen, each payment is made once, and progress is told', async (t) => {
  const demo = await startDemo()
  t.after(() => demo.kill())
  const { code, counts, stdout, stderr } = await traffic('--url', demo.url, '--seconds', '6', '--rate', '20')
  assert.equal(code, 0, stdout + stderr)
  assert.equal(counts['double executions'], 0, stdout)
  assert.equal(counts['errors'], 0, stdout)
  assert.equal(counts['executed'], counts['payments wanted'], stdout)
  assert.ok((counts['payments wanted'] ?? 0) >= 100, `20 a second for 6 seconds:\n${stdout}`)
  const seen = ['replayed', 'conflicts (409)', 'mismatches (422)', 'aborted by the client', 'failed, then retried']
  for (const name of seen) assert.ok((counts[name] ?? 0) > 0, `none ${name}:\n${stdout}`)
  assert.match(stderr, /^\d+ payments, \d+ requests, \d+ replayed, \d+ conflicts, 0 errors\n/)
})

test('retries that go to another process are found in a Redis that both use', async (t) => {
  const redis = await startRedis()
  t.after(() => redis.stop())
  const demos = await Promise.all([1, 2].map(() => startDemo({ IDEMPOTENCY_STORE: redis.url })))
  t.after(() => Promise.all(demos.map((demo) => demo.kill())))
  const { code, counts, stdout } = await traffic(...demos.flatMap(({ url }) => ['--url', url]), '--seconds', '2')
  assert.equal(code, 0, stdout)
  assert.equal(counts['executed'], counts['payments wanted'], stdout)
})

test('two processes with a memory of their own each execute twice, which is told and ends with 1', async (t) => {
  const demos = await Promise.all([1, 2].map(() => startDemo()))
  t.after(() => Promise.all(demos.map((demo) => demo.kill())))
  const { code, counts, stdout } = await traffic(...demos.flatMap(({ url }) => ['--url', url]), '--seconds', '2')
  assert.equal(code, 1, stdout)
  assert.ok((counts['double executions'] ?? 0) > 0, stdout)
})

test('a server without the plugin executes retries, duplicates and reused keys again', async (t) => {
  const url = await unprotectedServer(t)
  const { code, counts, stdout } = await traffic('--url', url, '--seconds', '2')
  assert.equal(code, 1, stdout)
  // Of ten orders one is retried, one is aborted and retried, one is sent three times, and one reuses its key.
  const perTen = (counts['payments wanted'] ?? 0) / 10
  assert.ok((counts['double executions'] ?? 0) >= 4 * perTen, stdout)
  assert.equal(counts['replayed'], 0)
  assert.ok((counts['errors'] ?? 0) > 0, `a reused key that is not refused is an error:\n${stdout}`)
})

/** The routes of the demo, with nothing that keeps a charge from being made twice. */
async function unprotectedServer(t: { after(end: () => unknown): void }): Promise<string> {
  const app = fastify()
  t.after(() => app.close())
  const charges: { id: string; account: unknown; amount: number }[] = []
  app.get('/healthz', () => ({ status: 'ok' }))
  app.get('/payments', ({ headers }) => ({
    charges: charges.filter(({ account }) => account === headers['x-api-key']),
  }))
  for (const path of ['/payments', '/slow', '/flaky']) {
    app.post<{ Body: { amount: number } }>(path, async ({ body, headers }, reply) => {
      if (path === '/slow') await sleep(100)
      charges.push({ id: randomUUID(), account: headers['x-api-key'], amount: body.amount })
      reply.code(201)
      return {}
    })
  }
  return app.listen({ host: '127.0.0.1', port: 0 })
}

test('without an API it says so, with 2', async () => {
  const { code, stderr } = await traffic('--url', 'http://127.0.0.1:1')
  assert.equal(code, 2)
  assert.match(
    stderr,
    /^There is no payments API at http:\/\/127\.0\.0\.1:1\. Start one in another shell: npm start\n$/,
  )
})

test('a wrong option is named, with the usage and 2', async () => {
  for (const [args, problem] of [
    [['--rate', '0'], /^--rate takes a number from 1 to 500, got "0"\n/],
    [['--seconds', 'ten'], /^--seconds takes a number from 1 to 86400, got "ten"\n/],
    [['--url', 'nonsense'], /^Invalid URL\n/],
    [['--speed', '1'], /^Unknown option '--speed'/],
  ] as const) {
    const { code, stderr } = await traffic(...args)
    assert.equal(code, 2, stderr)
    assert.match(stderr, problem)
    assert.match(stderr, /\nUsage: npm run demo:traffic -- /)
  }
})
