/** Laws of the recorded response: it comes back byte for byte, or its completion is refused. */

import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import { type StoredHeaders, type StoredResponse, withoutBody } from '../response.ts'
import type { Claim } from '../store.ts'
import { assertResponse, LONG_TTL_MS, newRequest, recordIn, responseOf, rivalOf, type Trial } from './trial.ts'

/** Registers the laws of responses. */
export function responseLaws(trial: Trial): void {
  describe('responses', () => {
    bodies(trial)
    headersAndStatuses(trial)
    large(trial)
    if (trial.capabilities.keepsReferences !== true) copies(trial)
  })
}

const ALL_BYTES = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte))

const BODIES: Readonly<Record<string, StoredResponse['body']>> = {
  'binary with all 256 bytes': ALL_BYTES,
  'bytes that look like text stay a Buffer': Buffer.from('{"paid":true}'),
  'no bytes at all stay a Buffer': Buffer.alloc(0),
  'an empty string': '',
  'no body': null,
  'text with line breaks, quotes and a NUL': 'a\r\nb"c\'d\0e\\f',
  'text beyond ASCII and beyond the basic plane': 'żółć \u2028 決済 💳 👩‍👩‍👧',
  'text that looks like a number': '0123.0',
  '64 KiB of bytes': Buffer.alloc(65_536, ALL_BYTES),
}

function bodies(trial: Trial): void {
  for (const [what, body] of Object.entries(BODIES)) {
    it(`a response comes back byte for byte: ${what}`, async () => {
      await expectKept(trial, { ...responseOf(''), body })
    })
  }

  it('a response that was not recorded comes back as not replayable', async () => {
    await expectKept(trial, withoutBody(202))
  })

  it('a response that was not recorded keeps its headers', async () => {
    await expectKept(trial, { ...withoutBody(200), headers: { location: '/payments/1' } })
  })
}

async function expectKept(trial: Trial, response: StoredResponse): Promise<void> {
  const request = newRequest()
  const claim = await trial.claim(request)
  assert.equal(await trial.client().complete(claim, response, LONG_TTL_MS), true)
  assertResponse(recordIn(await trial.client(1).claim(rivalOf(request))).response, response)
  await trial.expectRecord(claim, 'completed', response)
}

const HEADERS: Readonly<Record<string, StoredHeaders>> = {
  none: {},
  'repeated headers stay apart, in order': { link: ['<b>; rel="b"', '<a>; rel="a"', '<b>; rel="b"'], vary: ['one'] },
  'odd characters in values': { 'x-odd': 'caf\u00e9 \u00ff\t"a", b; c=\\"d\\" %00', 'x-empty': '', 'x-number': '007' },
  'many of them': Object.fromEntries(Array.from({ length: 100 }, (_, index) => [`x-${index}`, `value ${index}`])),
}

// Every class, every status with rules of its own, and both ends of the range.
const STATUSES = [
  200, 201, 202, 203, 204, 205, 206, 226, 299, 300, 301, 302, 303, 304, 307, 308, 400, 401, 402, 403, 404, 405, 406,
  409, 410, 413, 415, 418, 422, 428, 429, 431, 451, 499, 500, 501, 502, 503, 504, 511, 599,
]

function headersAndStatuses(trial: Trial): void {
  for (const [what, headers] of Object.entries(HEADERS)) {
    it(`headers come back as they were: ${what}`, async () => {
      await expectKept(trial, { ...responseOf('with headers'), headers })
    })
  }

  it('every status from 200 to 599 comes back', async () => {
    await Promise.all(STATUSES.map((statusCode) => expectKept(trial, { ...responseOf('with a status'), statusCode })))
  })
}

function large(trial: Trial): void {
  it('a response of 1 MiB comes back byte for byte, or complete refuses it and the claim stays pending', async () => {
    const response = { ...responseOf(''), body: Buffer.alloc(1_048_576, ALL_BYTES) }
    const claim = await trial.claim()
    const refusal = await refusalOf(trial, claim, response)
    if (refusal === undefined) return trial.expectRecord(claim, 'completed', response)
    // By its code: the class may be another copy of the package's.
    assert.equal(refusal.code, 'FST_IDEMPOTENCY_RESPONSE_TOO_LARGE')
    await trial.expectRecord(claim, 'pending')
    assert.equal(await trial.client().complete(claim, withoutBody(200), LONG_TTL_MS), true)
  })
}

async function refusalOf(trial: Trial, claim: Claim, response: StoredResponse): Promise<{ code?: string } | undefined> {
  try {
    assert.equal(await trial.client().complete(claim, response, LONG_TTL_MS), true)
    return undefined
  } catch (error) {
    if (error instanceof assert.AssertionError) throw error
    return error as { code?: string }
  }
}

function copies(trial: Trial): void {
  const mutable = () => ({ ...responseOf(''), headers: { link: ['</a>', '</b>'] }, body: Buffer.from('as it was') })

  it('what the caller does to its body and headers after complete does not change the record', async () => {
    const response = mutable()
    const claim = await trial.claim()
    await trial.client().complete(claim, response, LONG_TTL_MS)
    response.body.fill(0)
    response.headers.link.reverse()
    await trial.expectRecord(claim, 'completed', mutable())
  })

  it('what a reader does to a response it was given does not change the record', async () => {
    const request = newRequest()
    const claim = await trial.claim(request)
    await trial.client().complete(claim, mutable(), LONG_TTL_MS)
    const given = recordIn(await trial.client(1).claim(rivalOf(request))).response as ReturnType<typeof mutable>
    given.body.fill(0)
    given.headers.link.reverse()
    await trial.expectRecord(claim, 'completed', mutable())
  })
}
