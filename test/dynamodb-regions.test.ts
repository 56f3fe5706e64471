/** Home regions: three servers as three regions. */

import assert from 'node:assert/strict'
import { describe, it, type TestContext } from 'node:test'
import { type DynamoDBClient, ScanCommand } from '@aws-sdk/client-dynamodb'
import { createTable, DynamoDBStore } from '../src/stores/dynamodb/index.ts'
import { homeRegion } from '../src/stores/dynamodb/regions.ts'
import { createApp, logCollector, post } from './support/app.ts'
import { clientOf } from './support/dynamodb/client.ts'
import { type DynamoDBServer, startOwnDynamoDB } from './support/dynamodb/server.ts'
import { request } from './support/requests.ts'

const THREE = ['eu-west-1', 'us-east-1', 'ap-south-1']
const keys = Array.from({ length: 9_000 }, (_, i) => `idem#v1#acct_${i % 7}#POST:/payments#key-${i}`)

describe('the home region of a key', () => {
  it('is the same in whatever order a node lists the regions', () => {
    for (const key of keys.slice(0, 500)) {
      assert.equal(homeRegion(THREE, key), homeRegion(THREE.toReversed(), key), key)
    }
  })

  it('is each of them for about as many keys', () => {
    for (const region of THREE) {
      const own = keys.filter((key) => homeRegion(THREE, key) === region).length
      // 3,000 expected, standard deviation 45: six of them either way.
      assert.ok(own > 2_730 && own < 3_270, `${region} has ${own} of ${keys.length}`)
    }
  })

  it('stays where it is when another region goes', () => {
    const [gone = '', ...left] = THREE
    for (const key of keys) {
      const home = homeRegion(THREE, key)
      if (home !== gone) assert.equal(homeRegion(left, key), home, key)
    }
  })
})

/** Three servers as three regions, and two nodes: one in the first region, one in the second. */
async function startRegions(t: TestContext) {
  const servers = await Promise.all(THREE.map(() => startOwnDynamoDB()))
  const clients = servers.map(({ endpoint }) => clientOf(endpoint, { maxAttempts: 1 }))
  t.after(async () => {
    for (const client of clients) client.destroy()
    await Promise.all(servers.map((server) => server.stop()))
  })
  const tableName = 'regions'
  await Promise.all(clients.map((client) => createTable(client, { tableName, index: true })))
  const byName = Object.fromEntries(THREE.map((name, i) => [name, clients[i] as DynamoDBClient]))
  const node = (self: string) =>
    new DynamoDBStore({ regions: { self, clients: byName }, tableName, credentialIndex: true, timeoutMs: 500 })
  return {
    nodes: [node('eu-west-1'), node('us-east-1')] as const,
    serverOf: (region: string) => servers[THREE.indexOf(region)] as DynamoDBServer,
    itemsIn: async (region: string) =>
      (await byName[region]?.send(new ScanCommand({ TableName: tableName })))?.Items?.map((item) => item['pk']?.S) ??
      [],
  }
}

describe('a store with home regions', () => {
  it('never lets two regions claim one key, and keeps each key in its own', async (t) => {
    const { nodes, itemsIn } = await startRegions(t)
    const sent = keys.slice(0, 60)
    for (const key of sent) {
      const results = await Promise.all(nodes.map((node) => node.claim(request(key))))
      assert.deepEqual(results.map(({ outcome }) => outcome).toSorted(), ['claimed', 'exists'], key)
      const won = results.find((result) => result.outcome === 'claimed')
      assert.equal(won?.outcome === 'claimed' && won.claim.region, homeRegion(THREE, key), key)
    }
    for (const region of THREE) {
      const own = sent.filter((key) => homeRegion(THREE, key) === region)
      assert.ok(own.length > 0, `no key lives in ${region}`)
      assert.deepEqual((await itemsIn(region)).toSorted(), own.toSorted(), region)
    }
  })

  it('completes, reads, renews, fails and releases where the key lives', async (t) => {
    const { nodes } = await startRegions(t)
    const [here, there] = nodes
    for (const key of keys.slice(0, 12)) {
      const claimed = await here.claim(request(key))
      assert.ok(claimed.outcome === 'claimed', key)
      assert.equal(await there.renew(claimed.claim, 30_000), true, key)
      const response = { statusCode: 201, headers: {}, body: 'paid', replayable: true }
      assert.equal(await there.complete(claimed.claim, response, 60_000), true, key)
      assert.deepEqual((await here.read(key))?.response, response, key)
    }
    for (const ending of ['fail', 'release'] as const) {
      const claimed = await here.claim(request(`${keys[0]}-${ending}`))
      assert.ok(claimed.outcome === 'claimed', ending)
      assert.equal(await there[ending](claimed.claim, 60_000), true, ending)
    }
  })

  it('answers 503 for the keys of a region that is down, and for no others', async (t) => {
    const { nodes, serverOf } = await startRegions(t)
    const [store] = nodes
    const { lines, logger } = logCollector()
    const app = await createApp(t, { store, credential: () => 'acct_1' }, { logger })
    app.post('/pay', async () => 'paid')
    await app.ready()
    await serverOf('ap-south-1').kill()
    const statuses = new Map<string, number[]>(THREE.map((region) => [region, []]))
    for (let n = 0; n < 30; n++) {
      const region = homeRegion(THREE, app.idempotency.scopedKey('acct_1', 'POST', '/pay', `k-${n}`))
      const { statusCode } = await post(app, '/pay', `k-${n}`)
      statuses.get(region)?.push(statusCode)
    }
    for (const [region, seen] of statuses) {
      const expected = region === 'ap-south-1' ? 503 : 200
      assert.ok(seen.length > 0 && seen.every((status) => status === expected), `${region}: ${seen}`)
    }
    const regionsOf = (msg: string) =>
      [...new Set(lines.filter((line) => line.msg === msg).map((line) => String(line['region'])))].toSorted()
    assert.deepEqual(regionsOf('idempotency: store operation claim failed'), ['ap-south-1'])
    assert.deepEqual(regionsOf('idempotency: claimed'), ['eu-west-1', 'us-east-1'])
  })

  it('starts while another region is down, with a warning, but not without its own', async (t) => {
    const { nodes, serverOf } = await startRegions(t)
    const [inEurope, inAmerica] = nodes
    assert.deepEqual(await inEurope.check(), [])
    await serverOf('us-east-1').kill()
    const warnings = await inEurope.check()
    assert.equal(warnings.length, 1, warnings.join('\n'))
    assert.match(String(warnings[0]), /^region us-east-1: .*; its keys get 503$/)
    await assert.rejects(inAmerica.check())
  })

  it('lists the keys of a credential region by region', async (t) => {
    const { nodes } = await startRegions(t)
    const [store] = nodes
    const sent = keys.slice(0, 40).map((key) => key.replace(/acct_\d/, 'acct%20x'))
    for (const key of sent) await store.claim(request(key))
    const found = new Map<string, string[]>()
    for (const region of THREE) {
      const { keys: page } = await store.listByCredential('acct x', { limit: 100, region })
      found.set(region, page.map(({ scopedKey }) => scopedKey).toSorted())
    }
    for (const region of THREE) {
      assert.deepEqual(found.get(region), sent.filter((key) => homeRegion(THREE, key) === region).toSorted(), region)
    }
    const { next } = await store.listByCredential('acct x', { limit: 1 })
    const elsewhere = store.listByCredential('acct x', { limit: 1, token: next, region: 'us-east-1' })
    await assert.rejects(elsewhere, /"token" is one of another table, credential or region/)
    await assert.rejects(
      store.listByCredential('acct x', { region: 'mars' }),
      /unknown region "mars"; known regions: eu-/,
    )
  })

  it('refuses regions that are none', () => {
    const client = clientOf('http://127.0.0.1:1')
    const tableName = 'regions'
    const refused: [options: object, says: RegExp][] = [
      [{ regions: { self: 'a', clients: {} } }, /option "regions" takes \{ self, clients \}/],
      [{ regions: { self: 'b', clients: { a: client } } }, /option "regions" takes \{ self, clients \}/],
      [{ regions: { self: 'a', clients: { a: {} } } }, /option "regions" takes \{ self, clients \}/],
      [{ regions: { self: 'a', clients: { a: client } }, client }, /takes "client" or "regions", not both/],
      [{}, /option "client" is missing/],
    ]
    for (const [options, says] of refused) assert.throws(() => new DynamoDBStore({ ...options, tableName }), says)
    client.destroy()
  })
})
