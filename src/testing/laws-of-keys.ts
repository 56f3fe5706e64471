/** Laws of scoped keys: opaque, kept apart by every byte. */

import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import type { ClaimRequest } from '../store.ts'
import { LONG_LEASE_MS, LONG_TTL_MS, newRequest, responseOf, type Trial } from './trial.ts'

const ODD_ENDINGS: Readonly<Record<string, string>> = {
  'delimiters and percent signs': 'a#b%23c:d/e?f&g',
  'spaces at both ends': '  a b  ',
  'line breaks and tabs': 'a\r\nb\tc',
  'quotes and backslashes': `'"\`;--\\{}[]*?$`,
  'non-ASCII characters': 'żółć-決済-💳',
  'a length of 1 KiB': 'k'.repeat(1_024),
}

/** Registers the laws of keys. */
export function keyLaws(trial: Trial): void {
  describe('keys', () => {
    oddKeys(trial)
    likeKeys(trial)
  })
}

function oddKeys(trial: Trial): void {
  for (const [what, ending] of Object.entries(ODD_ENDINGS)) {
    it(`odd keys: ${what}`, async () => {
      const base = newRequest()
      await expectKeyWorks(trial, newRequest({ scopedKey: base.scopedKey + ending }))
    })
  }

  it('odd keys: a NUL is right, or refused with an error', async () => {
    const request = newRequest({ scopedKey: `${newRequest().scopedKey}\0end` })
    const refusal = await trial
      .client()
      .claim(request)
      .then(
        () => undefined,
        (error: unknown) => error,
      )
    if (refusal !== undefined) return assert.ok(refusal instanceof Error)
    await trial.expectRecord({ ...request, fence: 1 }, 'pending')
    await expectOthersAbsent(trial, [request.scopedKey.slice(0, -4), request.scopedKey.replace('\0', '')])
  })
}

function likeKeys(trial: Trial): void {
  it('keys that differ only in case are different keys', async () => {
    const { scopedKey } = await trial.claim(newRequest({ scopedKey: `${newRequest().scopedKey}Key` }))
    await expectOthersAbsent(trial, [`${scopedKey.slice(0, -3)}KEY`, `${scopedKey.slice(0, -3)}key`])
  })

  it('a key that is the beginning of another is a different key', async () => {
    const { scopedKey } = await trial.claim()
    await expectOthersAbsent(trial, [`${scopedKey}1`, `${scopedKey}#`, `${scopedKey} `, scopedKey.slice(0, -1)])
  })
}

async function expectKeyWorks(trial: Trial, request: ClaimRequest): Promise<void> {
  const claim = await trial.claim(request)
  assert.equal(await trial.client().renew(claim, LONG_LEASE_MS), true)
  assert.equal(await trial.client().complete(claim, responseOf('odd'), LONG_TTL_MS), true)
  await trial.expectRecord(claim, 'completed', responseOf('odd'))
  await expectOthersAbsent(trial, [`${request.scopedKey}x`, request.scopedKey.slice(0, -1)])
}

async function expectOthersAbsent(trial: Trial, scopedKeys: readonly string[]): Promise<void> {
  for (const scopedKey of scopedKeys) await trial.expectAbsent(scopedKey)
}
