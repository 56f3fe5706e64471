/** Laws that take a look behind the contract: round trips, and records of a version that is not known yet. */

import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import type { IdempotencyStore } from '../store.ts'
import { LONG_TTL_MS, newRequest, responseOf, rivalOf, type Trial } from './trial.ts'

/** Registers the law of one round trip, where round trips can be counted. */
export function roundTripLaws(trial: Trial): void {
  const { roundTrips } = trial.capabilities
  if (roundTrips === undefined) return

  const expectOne = async (act: () => Promise<unknown>) => {
    const before = await roundTrips()
    await act()
    assert.equal((await roundTrips()) - before, 1)
  }

  it('the first claim, a conflict, the completion and the replay take one round trip each', async () => {
    const store = trial.client()
    await warmUp(store)
    const request = newRequest()
    await expectOne(() => store.claim(request))
    await expectOne(() => store.claim(rivalOf(request)))
    await expectOne(() => store.complete({ ...request, fence: 1 }, responseOf('paid'), LONG_TTL_MS))
    await expectOne(() => store.claim(rivalOf(request)))
  })
}

/** Connections are opened and scripts are loaded once: not counted. */
async function warmUp(store: IdempotencyStore): Promise<void> {
  const request = newRequest()
  await store.claim(request)
  await store.claim(rivalOf(request))
  await store.complete({ ...request, fence: 1 }, responseOf('paid'), LONG_TTL_MS)
  await store.claim(rivalOf(request))
}

/** Registers the law of unknown versions, where one can be planted. */
export function versionLaws(trial: Trial): void {
  const { writeUnknownVersion } = trial.capabilities
  if (writeUnknownVersion === undefined) return

  describe('versions', () => {
    it('a record of an unknown version is refused with an error that says so, and is not overwritten', async () => {
      const request = newRequest()
      await writeUnknownVersion(request.scopedKey)
      for (let attempt = 0; attempt < 2; attempt++) {
        await assert.rejects(trial.client(attempt).claim(rivalOf(request)), /version/i)
        await assert.rejects(trial.client(attempt).read(request.scopedKey), /version/i)
      }
    })
  })
}
