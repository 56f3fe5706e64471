/** Two versions of the package on one Redis: neither misreads nor overwrites what the other has written. */

import assert from 'node:assert/strict'
import { once } from 'node:events'
import { cpSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { after, before, describe, it } from 'node:test'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { Redis } from 'ioredis'
import { type RedisClient, RedisStore } from '../src/stores/redis/index.ts'
import { newFolder } from './support/redis/processes.ts'
import { type RedisServer, startRedis } from './support/redis/servers.ts'
import { request } from './support/requests.ts'

const ROOT = fileURLToPath(new URL('..', import.meta.url))
const SCRIPT_NAME = /\bfidem(\w+\d)\b/
const PAID = { statusCode: 201, headers: {}, body: 'paid', replayable: true }

/** The store as a later version of the package would have it: records and scripts of version 2. */
async function laterVersion(): Promise<typeof RedisStore> {
  const folder = newFolder('version-2')
  mkdirSync(join(folder, 'src/stores'), { recursive: true })
  writeFileSync(join(folder, 'package.json'), '{ "type": "module" }')
  symlinkSync(join(ROOT, 'node_modules'), join(folder, 'node_modules'))
  for (const path of [
    'src/errors.ts',
    'src/response.ts',
    'src/store.ts',
    'src/stores/option-rules.ts',
    'src/stores/redis',
  ]) {
    cpSync(join(ROOT, path), join(folder, path), { recursive: true })
  }
  edit(join(folder, 'src/stores/redis/record.ts'), [["VERSION = '1'", "VERSION = '2'"]])
  edit(join(folder, 'src/stores/redis/replicas.ts'), [["'^1|", "'^2|"]])
  edit(join(folder, 'src/stores/redis/scripts.ts'), [
    ["'^1|", "'^2|"],
    ["'1|p|'", "'2|p|'"],
    ["'1|f|", "'2|f|"],
    ["version ~= '1'", "version ~= '2'"],
    [SCRIPT_NAME, 'fidem$1Later'],
  ])
  edit(join(folder, 'src/stores/redis/store.ts'), [[SCRIPT_NAME, 'fidem$1Later']])
  const url = pathToFileURL(join(folder, 'src/stores/redis/index.ts')).href
  return (await import(url)).RedisStore
}

function edit(file: string, changes: readonly [from: string | RegExp, to: string][]): void {
  let text = readFileSync(file, 'utf8')
  for (const [from, to] of changes) {
    const changed = text.replaceAll(typeof from === 'string' ? from : new RegExp(from.source, 'g'), to)
    assert.notEqual(changed, text, `${file} has no ${from}`)
    text = changed
  }
  writeFileSync(file, text)
}

describe('two versions of the package on one Redis', () => {
  let redis: RedisServer
  let client: Redis
  let versions: readonly (typeof RedisStore)[]
  let stores: readonly RedisStore[]

  before(async () => {
    redis = await startRedis({})
    versions = [RedisStore, await laterVersion()]
    client = new Redis(redis.url, { enableOfflineQueue: false, maxRetriesPerRequest: 0, enableAutoPipelining: true })
    stores = versions.map((Store) => new Store({ client: client as unknown as RedisClient }))
    for (const store of stores) await store.check()
  })
  after(async () => {
    client.disconnect()
    await redis.stop()
  })

  const claimed = async (store: RedisStore | undefined, asked = request()) => {
    const result = await store?.claim(asked)
    assert.ok(result?.outcome === 'claimed')
    return result.claim
  }

  for (const [mine, others] of [
    [0, 1],
    [1, 0],
  ] as const) {
    const unknown = new RegExp(`record of unknown version "${mine + 1}" .* reads version ${others + 1}`)

    it(`a record of version ${mine + 1} is refused by version ${others + 1}, in each state, and stays as it is`, async () => {
      const [owner, other] = [stores[mine], stores[others]]
      const ends: ((claim: Awaited<ReturnType<typeof claimed>>) => Promise<unknown> | undefined)[] = [
        async () => {},
        (claim) => owner?.fail(claim, 60_000),
        (claim) => owner?.complete(claim, PAID, 60_000),
      ]
      for (const end of ends) {
        const claim = await claimed(owner)
        await end(claim)
        const written = await redis.cli('GET', claim.scopedKey)
        assert.ok(written.startsWith(`${mine + 1}|`), written)
        await assert.rejects(other?.claim(request(claim.scopedKey)) as Promise<unknown>, unknown)
        await assert.rejects(other?.read(claim.scopedKey) as Promise<unknown>, unknown)
        // Not even with its token, which a deployment in between could know.
        for (const done of [
          other?.complete(claim, { ...PAID, body: 'again' }, 60_000),
          other?.fail(claim, 60_000),
          other?.renew(claim, 30_000),
          other?.release(claim),
          other?.giveBack(claim, 60_000),
        ]) {
          assert.equal(await done, false)
        }
        assert.equal(await redis.cli('GET', claim.scopedKey), written)
      }
    })

    it(`scripts alone, as on Redis 6.2: version ${others + 1} refuses what version ${mine + 1} has claimed, and failed`, async (t) => {
      const claim = await claimed(stores[mine])
      const { scopedKey } = claim
      const [owner, other] = await Promise.all(
        [mine, others].map(async (index) => {
          const old = new Redis(redis.url)
          t.after(() => old.disconnect())
          await once(old, 'ready') // ioredis itself asks for INFO until then
          old.info = (async () => 'redis_version:6.2.14\r\n') as typeof old.info
          return new (versions[index] as typeof RedisStore)({ client: old })
        }),
      )
      await assert.rejects(other?.claim(request(scopedKey)) as Promise<unknown>, unknown)
      assert.equal((await owner?.claim(request(scopedKey)))?.outcome, 'exists')
      await stores[mine]?.fail(claim, 60_000)
      await assert.rejects(other?.claim(request(scopedKey)) as Promise<unknown>, unknown)
      assert.equal((await owner?.claim(request(scopedKey)))?.outcome, 'claimed', 'the owner takes it over')
    })
  }

  it('each goes on with its own keys, on one client, through SCRIPT FLUSH', async () => {
    for (let round = 0; round < 20; round++) {
      const claims = await Promise.all(stores.map((store) => claimed(store)))
      await redis.cli('SCRIPT', 'FLUSH')
      const renewed = await Promise.all(stores.map((store, index) => store.renew(claims[index] as never, 30_000)))
      assert.deepEqual(renewed, [true, true])
      await redis.cli('SCRIPT', 'FLUSH')
      const done = await Promise.all(stores.map((store, index) => store.complete(claims[index] as never, PAID, 60_000)))
      assert.deepEqual(done, [true, true])
      for (const [index, store] of stores.entries()) {
        assert.equal((await store.read(claims[index]?.scopedKey ?? ''))?.response?.body, 'paid')
      }
    }
  })
})
