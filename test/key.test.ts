/** DESIGN §5 on a real socket: which keys are accepted, which are refused before any store call, and what they scope to. */

import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { describe, it, type TestContext } from 'node:test'
import fc from 'fast-check'
import { scopedKey } from '../src/scoped-key.ts'
import { createApp, listen, post } from './support/app.ts'
import { rawRequest } from './support/socket.ts'
import { watchedStore } from './support/stores.ts'

async function keyEcho(t: TestContext, options = {}) {
  const { store, calls } = watchedStore()
  const app = await createApp(t, { store, required: true, ...options })
  app.post('/pay', async (request) => ({ key: request.idempotency?.key, scopedKey: request.idempotency?.scopedKey }))
  const url = await listen(app)
  const send = async (...headerLines: string[]) => {
    const response = await rawRequest(url, 'POST /pay', headerLines)
    return { statusCode: response.statusCode, body: JSON.parse(response.body.toString()) }
  }
  return { app, calls, send }
}

const accepted: [name: string, header: string, key: string][] = [
  ['a raw token', 'abc', 'abc'],
  ['a quoted string', '"abc"', 'abc'],
  ['escaped quotes', '"a\\"b"', 'a"b'],
  ['an escaped backslash', '"a\\\\b"', 'a\\b'],
  ['parameters after the string', '"abc";v=1;w', 'abc'],
  ['a comma inside quotes', '"a,b"', 'a,b'],
  ['a space inside a raw value', 'a b', 'a b'],
  ['a quote inside a raw value', 'a"b', 'a"b'],
  ['# as it is', '#', '#'],
  ['%23 as it is', '%23', '%23'],
  ['one character', 'x', 'x'],
  ['255 characters', 'x'.repeat(255), 'x'.repeat(255)],
  ['255 characters in quotes', `"${'x'.repeat(255)}"`, 'x'.repeat(255)],
  ['white space around it', '  abc  ', 'abc'],
]

const refused: [name: string, header: string, says: RegExp][] = [
  ['an empty value', '', /empty/],
  ['an empty string', '""', /empty/],
  ['a blank string', '"   "', /blank/],
  ['256 characters', 'x'.repeat(256), /255/],
  ['256 characters in quotes', `"${'x'.repeat(256)}"`, /255/],
  ['a non-ASCII character', 'é', /printable ASCII/],
  ['a non-ASCII character in quotes', '"é"', /structured-field/],
  ['a control character', 'a\tb', /printable ASCII/],
  ['an unclosed quote', '"abc', /structured-field/],
  ['a lone quote', '"', /structured-field/],
  ['text after the closing quote', '"abc"def', /structured-field/],
  ['two strings in one line', '"abc", "def"', /structured-field/],
  ['a raw value with a comma', 'a,b', /comma/],
  ['a bad escape', '"a\\nb"', /structured-field/],
]

describe('Idempotency-Key header', () => {
  for (const [name, header, key] of accepted) {
    it(`accepts ${name}`, async (t) => {
      const { send } = await keyEcho(t)
      const { statusCode, body } = await send(`Idempotency-Key: ${header}`)
      assert.equal(statusCode, 200)
      assert.equal(body.key, key)
    })
  }

  for (const [name, header, says] of refused) {
    it(`refuses ${name} before the store is asked`, async (t) => {
      const { send, calls } = await keyEcho(t)
      const { statusCode, body } = await send(`Idempotency-Key: ${header}`)
      assert.equal(statusCode, 400)
      assert.equal(body.code, 'FST_IDEMPOTENCY_KEY_INVALID')
      assert.match(body.detail, says)
      assert.deepEqual(calls, [])
    })
  }

  it('refuses what an HTTP parser would have stopped', async (t) => {
    const { app, calls } = await keyEcho(t)
    for (const key of ['a\x7fb', 'a\nb', 'a\0b', '\u4e2d']) {
      assert.equal((await post(app, '/pay', key)).json().code, 'FST_IDEMPOTENCY_KEY_INVALID', JSON.stringify(key))
    }
    assert.deepEqual(calls, [])
  })

  const twoLines: [name: string, first: string, second: string][] = [
    ['two equal lines', 'abc', 'abc'],
    ['two quoted lines', '"abc"', '"def"'],
    ['two halves that join to a valid string', '"abc', 'def"'],
    ['lines in different letter case', 'abc', 'def'],
  ]
  for (const [name, first, second] of twoLines) {
    it(`refuses ${name}`, async (t) => {
      const { send, calls } = await keyEcho(t)
      const { statusCode, body } = await send(`Idempotency-Key: ${first}`, `IDEMPOTENCY-KEY: ${second}`)
      assert.equal(statusCode, 400)
      assert.match(body.detail, /more than once/)
      assert.deepEqual(calls, [])
    })
  }

  it('takes the raw and the quoted form of a key for the same key', async (t) => {
    const { send } = await keyEcho(t)
    const raw = await send('Idempotency-Key: abc')
    const quoted = await send('Idempotency-Key: "abc"')
    assert.deepEqual(quoted.body, raw.body)
  })

  it('strict accepts only the quoted form', async (t) => {
    const { send, calls } = await keyEcho(t, { strict: true })
    assert.equal((await send('Idempotency-Key: "abc"')).statusCode, 200)
    calls.length = 0
    for (const value of ['abc', ':YWJj:', '1', '?1']) {
      const { statusCode, body } = await send(`Idempotency-Key: ${value}`)
      assert.equal(statusCode, 400, value)
      assert.match(body.detail, /double quotes/)
    }
    assert.deepEqual(calls, [])
  })

  it('validateKey comes after the built-in rules', async (t) => {
    const seen: string[] = []
    const validateKey = (key: string) => seen.push(key) > 0 && /^[0-9a-f-]{36}$/.test(key)
    const { send, calls } = await keyEcho(t, { validateKey })
    const { statusCode, body } = await send('Idempotency-Key: "abc"')
    assert.equal(statusCode, 400)
    assert.match(body.detail, /format/)
    assert.equal((await send('Idempotency-Key: a,b')).statusCode, 400)
    assert.deepEqual(seen, ['abc'])
    assert.deepEqual(calls, [])
  })

  it('reads the header that the option names, in any letter case', async (t) => {
    const { send } = await keyEcho(t, { header: 'X-Request-Key' })
    assert.equal((await send('x-request-KEY: abc')).body.key, 'abc')
    assert.equal((await send('Idempotency-Key: abc')).body.code, 'FST_IDEMPOTENCY_KEY_MISSING')
  })

  it('runs a request without the header unprotected, unless it is required', async (t) => {
    const { store, calls } = watchedStore()
    const app = await createApp(t, { store })
    app.post('/free', async (request) => ({ context: request.idempotency }))
    app.post('/strict', { config: { idempotency: { required: true } } }, async () => 'ran')
    assert.deepEqual((await post(app, '/free', undefined)).json(), { context: null })
    const missing = await post(app, '/strict', undefined)
    assert.equal(missing.statusCode, 400)
    assert.equal(missing.json().code, 'FST_IDEMPOTENCY_KEY_MISSING')
    assert.deepEqual(calls, [])
  })
})

describe('scoped key', () => {
  const sha256 = (text: string) => createHash('sha256').update(text).digest('hex')

  it('is idem#v1#<credential>#<METHOD>:<route pattern>#<key>', async (t) => {
    const app = await createApp(t, { credential: () => 'acct 1' })
    app.post('/payments/:id/refunds', async (request) => request.idempotency?.scopedKey)
    const { body } = await post(app, '/payments/7/refunds?x=1', '"50%#1"')
    assert.equal(body, 'idem#v1#acct%201#POST:/payments/:id/refunds#50%25%231')
  })

  it('has the hash of the Authorization header, or of x-api-key, or anonymous', async (t) => {
    const { send } = await keyEcho(t)
    const credentialWith = async (...headerLines: string[]) =>
      (await send('Idempotency-Key: k', ...headerLines)).body.scopedKey.split('#')[2]
    assert.equal(await credentialWith(), 'anonymous')
    assert.equal(await credentialWith('Authorization: Bearer a'), sha256('Bearer a'))
    assert.equal(await credentialWith('X-Api-Key: a'), sha256('a'))
  })

  it('keeps tenants apart that share a gateway token but not an API key', async (t) => {
    const { send } = await keyEcho(t)
    const as = (apiKey: string) => send('Idempotency-Key: k', 'Authorization: Bearer gateway', `X-Api-Key: ${apiKey}`)
    assert.notEqual((await as('a')).body.scopedKey, (await as('b')).body.scopedKey)
  })

  it('replaces a credential over 128 bytes by its SHA-256', () => {
    assert.equal(scopedKey('é'.repeat(64), 'r', 'k'), `idem#v1#${'%C3%A9'.repeat(64)}#r#k`)
    assert.equal(scopedKey('é'.repeat(65), 'r', 'k'), `idem#v1#${sha256('é'.repeat(65))}#r#k`)
  })

  it('never makes one key of two different triples', () => {
    const part = fc.oneof(
      fc.string({ unit: 'binary', maxLength: 8 }),
      fc.string({ unit: fc.constantFrom('#', '%', '2', '3', 'u', 'd', ' ', '\ud800', '\udfff', 'é'), maxLength: 6 }),
    )
    const triple = fc.tuple(part, part, part)
    fc.assert(
      fc.property(triple, triple, (one, other) => {
        const isSameTriple = one.every((text, i) => text === other[i])
        assert.equal(scopedKey(...one) === scopedKey(...other), isSameTriple)
      }),
      { numRuns: 5_000 },
    )
  })

  it('is printable ASCII with exactly four separators', () => {
    const part = fc.string({ unit: 'binary', maxLength: 40 })
    fc.assert(
      fc.property(part, part, part, (credential, route, key) => {
        const scoped = scopedKey(credential, route, key)
        assert.match(scoped, /^[\x21-\x7e]*$/)
        assert.equal(scoped.split('#').length, 5)
      }),
    )
  })

  const apart: [name: string, one: string[], other: string[]][] = [
    ['two tokens', ['POST /pay', 'Authorization: Bearer a'], ['POST /pay', 'Authorization: Bearer b']],
    ['two routes', ['POST /pay'], ['POST /refund']],
    ['two methods', ['POST /pay'], ['PATCH /pay']],
  ]
  for (const [name, one, other] of apart) {
    it(`the same key under ${name} is two keys, and neither caller can tell`, async (t) => {
      let runs = 0
      const app = await createApp(t)
      for (const url of ['/pay', '/refund'])
        app.route({ method: ['POST', 'PATCH'], url, handler: async () => ({ run: ++runs }) })
      const url = await listen(app)
      for (const [index, [start = '', ...headers]] of [one, other].entries()) {
        const response = await rawRequest(url, start, ['Idempotency-Key: k', ...headers])
        assert.equal(response.statusCode, 200)
        assert.equal(response.body.toString(), `{"run":${index + 1}}`)
      }
    })
  }

  it('the same key with another query string is a reuse', async (t) => {
    const app = await createApp(t)
    app.post('/pay', async () => 'paid')
    assert.equal((await post(app, '/pay?x=1', 'k')).statusCode, 200)
    assert.equal((await post(app, '/pay?x=2', 'k')).statusCode, 422)
    assert.equal((await post(app, '/pay?x=1', 'k')).headers['idempotent-replayed'], 'true')
  })

  for (const bad of [undefined, '', 7, Promise.resolve('a')]) {
    it(`a credential function that returns ${typeof bad} ${String(bad)} is an error, not a shared scope`, async (t) => {
      const { store, calls } = watchedStore()
      const app = await createApp(t, { store, credential: (() => bad) as unknown as () => string })
      app.post('/pay', async () => 'paid')
      const { statusCode, body } = await post(app, '/pay', 'k')
      assert.equal(statusCode, 500)
      assert.match(body, /credential\(request\) must return a non-empty string/)
      assert.deepEqual(calls, [])
    })
  }
})
