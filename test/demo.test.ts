import assert from 'node:assert/strict'
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { createServer } from 'node:net'
import { type TestContext, test } from 'node:test'
import { startDynamoDB } from './support/dynamodb/server.ts'
import { freePort } from './support/redis/processes.ts'
import { startRedis } from './support/redis/servers.ts'

type Environment = Record<string, string>

function startServer(env: Environment): ChildProcess {
  return spawn(process.execPath, ['--import', 'tsx', 'examples/server.ts'], {
    env: { ...process.env, PORT: '0', ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
}

/** A running demo: its base URL, and all that it printed until it was ready. */
async function startDemo(t: TestContext, env: Environment = {}) {
  const child = startServer(env)
  const exited = once(child, 'exit')
  t.after(() => child.kill('SIGKILL'))
  child.stderr?.pipe(process.stderr)
  let printed = ''
  for await (const chunk of child.stdout?.iterator({ destroyOnReturn: false }) ?? []) {
    printed += chunk
    if (printed.includes('Also:')) break
  }
  const [url = ''] = /http:\/\/[\d.]+:\d+/.exec(printed) ?? []
  return {
    url,
    printed,
    async stop(signal: NodeJS.Signals) {
      child.kill(signal)
      const [code] = await exited
      return code as number | null
    },
  }
}

/** What a demo that cannot start prints, and its exit code. */
async function failToStart(env: Environment) {
  const child = startServer(env)
  let printed = ''
  child.stderr?.on('data', (chunk) => {
    printed += chunk
  })
  const [code] = await once(child, 'close')
  return { code, printed }
}

interface Step {
  readonly curl: string
  readonly status: number
  readonly contains: readonly string[]
}

function stepsOf(printed: string): Step[] {
  return [...printed.matchAll(/^(curl .*)\n# expect (\d+), (.*)$/gm)].map(([, curl = '', status, contains = '']) => ({
    curl,
    status: Number(status),
    contains: contains.split(', '),
  }))
}

/** Sends what a curl command line would: `curl -i <url> [-H '<name>: <value>']… [-d '<body>']`. */
async function run(curl: string) {
  const [, , url = '', ...options] = [...curl.matchAll(/'([^']*)'|\S+/g)].map(([word, quoted]) => quoted ?? word)
  const init: RequestInit & { headers: [string, string][] } = { headers: [] }
  for (let i = 0; i < options.length; i += 2) {
    const [option, value = ''] = options.slice(i, i + 2)
    if (option === '-H') init.headers.push(value.split(': ', 2) as [string, string])
    else if (option === '-d') Object.assign(init, { method: 'POST', body: value })
    else assert.fail(`the test does not know the curl option ${option}`)
  }
  const response = await fetch(url, init)
  const headers = [...response.headers].map(([name, value]) => `${name}: ${value}`).join('\n')
  return { status: response.status, text: `${headers}\n\n${(await response.text()).replaceAll('"', '')}` }
}

function post(url: string, key: string, body: object = { amount: 100, currency: 'EUR' }) {
  return fetch(url, {
    method: 'POST',
    headers: { 'x-api-key': 'demo-ada', 'idempotency-key': key, 'content-type': 'application/json' },
    body: JSON.stringify(body),
  })
}

async function countCharges(url: string): Promise<number> {
  const response = await fetch(`${url}/payments`, { headers: { 'x-api-key': 'demo-ada' } })
  const { count } = (await response.json()) as { count: number }
  return count
}

/** Sends the requests that a demo has printed, and compares each response with what is printed below it. */
async function runTranscript(printed: string): Promise<Step[]> {
  const steps = stepsOf(printed)
  assert.deepEqual(
    steps.map(({ status }) => status),
    [201, 201, 422, 400, 200],
  )
  for (const { curl, status, contains } of steps) {
    const response = await run(curl)
    assert.equal(response.status, status, `${curl}\n${response.text}`)
    for (const text of contains) assert.ok(response.text.includes(text), `${curl}\n${response.text}\nlacks ${text}`)
  }
  return steps
}

test('each request of the printed transcript has the outcome that is printed below it', async (t) => {
  const demo = await startDemo(t)
  await runTranscript(demo.printed)
  assert.equal(await demo.stop('SIGTERM'), 0)
})

test('on Redis the transcript has the same outcomes, and a retry after a restart of the API is not charged', async (t) => {
  const redis = await startRedis()
  t.after(() => redis.stop())
  await outlivesRestarts(t, redis.url)
})

test('so it has on DynamoDB, in a table that the demo makes', async (t) => {
  const { host, port, stop } = await startDynamoDB()
  t.after(stop)
  await outlivesRestarts(t, `dynamodb://${host}:${port}/demo-${port}`)
})

async function outlivesRestarts(t: TestContext, IDEMPOTENCY_STORE: string): Promise<void> {
  const before = await startDemo(t, { IDEMPOTENCY_STORE })
  const [first] = await runTranscript(before.printed)
  assert.ok(first)
  const { text: answer } = await run(first.curl)
  assert.equal(await before.stop('SIGTERM'), 0)

  const after = await startDemo(t, { IDEMPOTENCY_STORE, PORT: new URL(before.url).port })
  const retry = await run(first.curl)
  assert.equal(retry.status, 201)
  assert.match(retry.text, /^idempotent-replayed: true$/m)
  assert.equal(withoutDate(retry.text), withoutDate(answer))
  assert.equal(await countCharges(after.url), 0)
  assert.equal(await after.stop('SIGTERM'), 0)
}

function withoutDate(response: string): string {
  return response.replace(/^date: .*\n/m, '')
}

test('a DynamoDB table that cannot be called so is named', async () => {
  const { code, printed } = await failToStart({ IDEMPOTENCY_STORE: 'dynamodb://127.0.0.1:8000/' })
  assert.equal(code, 1)
  assert.match(printed, /^IDEMPOTENCY_STORE: .*tableName/)
})

test('a Redis that is not there is named, without its password', async () => {
  const port = await freePort()
  const { code, printed } = await failToStart({ IDEMPOTENCY_STORE: `redis://ada:secret@127.0.0.1:${port}` })
  assert.equal(code, 1)
  assert.match(printed, new RegExp(`^IDEMPOTENCY_STORE: Redis is not reachable .* at 127.0.0.1:${port}\\b`))
  assert.doesNotMatch(printed, /secret/)
})

test('a failed attempt is run again by its retry, refunds are safe too, and other accounts see none of it', async (t) => {
  const demo = await startDemo(t)

  assert.equal((await post(`${demo.url}/flaky`, 'key-1')).status, 502)
  assert.equal(await countCharges(demo.url), 0)
  const retried = await post(`${demo.url}/flaky`, 'key-1')
  assert.equal(retried.status, 201)
  const { id } = (await retried.json()) as { id: string }
  const refunds = `${demo.url}/payments/${id}/refunds`
  assert.equal((await post(refunds, 'key-2', { amount: 60 })).status, 201)
  assert.equal((await post(refunds, 'key-2', { amount: 60 })).headers.get('idempotent-replayed'), 'true')
  assert.equal((await post(refunds, 'key-3', { amount: 60 })).status, 422, 'only 40 is left')

  const seenBy = (apiKey: string) => fetch(`${demo.url}/payments/${id}`, { headers: { 'x-api-key': apiKey } })
  assert.equal(((await (await seenBy('demo-ada')).json()) as { refunded: number }).refunded, 60)
  assert.equal((await seenBy('demo-grace')).status, 404)
  assert.equal((await seenBy('nobody')).status, 401)
  assert.equal((await fetch(`${demo.url}/healthz`)).status, 200)
})

test('a duplicate of a request that is still running gets 409, and SIGTERM lets the running one finish', async (t) => {
  const demo = await startDemo(t)
  const { running } = await postTwice(`${demo.url}/slow?ms=1000`)
  const stopped = demo.stop('SIGTERM')
  assert.equal((await running).status, 201)
  assert.equal(await stopped, 0)
})

test('killed in the handler: the memory store forgets the key with the process, and the retry runs as new', async (t) => {
  const before = await startDemo(t)
  const { running } = await postTwice(`${before.url}/slow?ms=30000`)
  const lost = assert.rejects(running)
  assert.equal(await before.stop('SIGKILL'), null)
  await lost

  const after = await startDemo(t, { PORT: new URL(before.url).port })
  assert.equal(after.url, before.url)
  const retry = await post(`${after.url}/slow?ms=0`, 'key-1')
  assert.equal(retry.status, 201)
  assert.equal(retry.headers.get('idempotent-replayed'), null)
  assert.equal(await countCharges(after.url), 1)
  assert.equal(await after.stop('SIGINT'), 0)
})

/** Sends a request twice at once; returns the one that is in its handler, once the other one was answered 409. */
async function postTwice(url: string) {
  const both = [post(url, 'key-1'), post(url, 'key-1')] as const
  const first = await Promise.race(both.map(async (response, i) => ({ i, status: (await response).status })))
  assert.equal(first.status, 409)
  return { running: first.i === 0 ? both[1] : both[0] }
}

test('an unknown store scheme is refused with the known ones, and without the rest of the URL', async () => {
  const { code, printed } = await failToStart({ IDEMPOTENCY_STORE: 'carrier-pigeon://ada:secret@loft' })
  assert.equal(code, 1)
  assert.match(printed, /^IDEMPOTENCY_STORE has the unknown scheme carrier-pigeon: \(known: memory:.*\)\n$/)
})

test('a store that is not a URL is refused', async () => {
  const { code, printed } = await failToStart({ IDEMPOTENCY_STORE: 'memory' })
  assert.equal(code, 1)
  assert.match(printed, /^IDEMPOTENCY_STORE is not a URL \(known: memory:/)
})

test('a port in use is named, with the way out', async (t) => {
  const occupant = createServer().listen(0, '127.0.0.1')
  t.after(() => occupant.close())
  await once(occupant, 'listening')
  const { port } = occupant.address() as { port: number }
  const { code, printed } = await failToStart({ PORT: String(port) })
  assert.equal(code, 1)
  assert.match(printed, new RegExp(`^Port ${port} on 127.0.0.1 is in use by another program. .*PORT=3001 npm start`))
})

test('a PORT that is no port is refused', async () => {
  const { code, printed } = await failToStart({ PORT: '3OOO' })
  assert.equal(code, 1)
  assert.match(printed, /^PORT takes a whole number from 0 to 65535, got "3OOO"/)
})
