/** Wrong options of the Redis stores are refused by name, and what cannot connect says why. */

import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, it, type TestContext } from 'node:test'
import { promisify } from 'node:util'
import { Cluster, Redis } from 'ioredis'
import { Redis as Redis5 } from 'ioredis5'
import { InvalidOptionError } from '../src/errors.ts'
import { MemoryStore } from '../src/index.ts'
import { QuorumRedisStore, type RedisClient, RedisStore, type RedisStoreOptions } from '../src/stores/redis/index.ts'
import { startCluster } from './support/redis/cluster.ts'
import { freePort, newFolder } from './support/redis/processes.ts'
import { startSentinel } from './support/redis/sentinel.ts'
import { type RedisOptions, startRedis } from './support/redis/servers.ts'
import { request } from './support/requests.ts'

const PASSWORD = 'open sesame'
const NOWHERE = [{ host: '127.0.0.1', port: 1 }]

async function start(t: TestContext, options: RedisOptions) {
  const redis = await startRedis(options)
  t.after(() => redis.stop())
  return redis
}

async function assertWorks(t: TestContext, options: RedisStoreOptions) {
  const store = new RedisStore(options)
  t.after(() => store.close())
  await store.check()
  assert.equal((await store.claim(request())).outcome, 'claimed')
}

/** What the check says of a store that cannot connect. */
async function refusalOf(t: TestContext, options: RedisStoreOptions): Promise<string> {
  const store = new RedisStore(options)
  t.after(() => store.close())
  const [result] = await Promise.allSettled([store.check()])
  return result.status === 'rejected' ? String(result.reason) : assert.fail('it can connect')
}

describe('options of RedisStore', () => {
  const url = 'redis://127.0.0.1:1'
  const client = new Redis({ lazyConnect: true }) as unknown as RedisClient
  const wrong: [what: string, options: object, message: RegExp][] = [
    ['a typo', { url, keyprefix: 'a' }, /RedisStore: unknown option "keyprefix"; known options: .*keyPrefix, /],
    ['a typo that is undefined', { url, keyprefix: undefined }, /unknown option "keyprefix"/],
    ['an option of Object.prototype', { url, toString: 1 }, /unknown option "toString"/],
    ['a prefix that is no string', { url, keyPrefix: 1 }, /option "keyPrefix" takes a string, got 1/],
    ['a negative size', { url, deflateFrom: -1 }, /"deflateFrom" takes a number of bytes of at least 0, or Infinity/],
    ['a size that is no number', { url, deflateFrom: Number.NaN }, /"deflateFrom" takes .*got NaN/],
    ['strict as a word', { url, strict: 'yes' }, /option "strict" takes true or false, got 'yes'/],
    ['a timer over 2^31', { url, waitTimeoutMs: 2 ** 31 }, /"waitTimeoutMs" takes .* from 1 to 2147483647/],
    ['no place', {}, /takes exactly one of client, url, sentinels, nodes, got none of them/],
    ['a place that is undefined', { url: undefined }, /got none of them/],
    ['two places', { url, nodes: NOWHERE }, /got url and nodes/],
    ['a client that is none', { client: {} }, /option "client" takes a Redis or Cluster of ioredis/],
    ['another scheme', { url: 'http://:secret@127.0.0.1' }, /"url" takes a URL that begins with redis:/],
    ['no nodes', { nodes: [] }, /"nodes" takes an array/],
    ['a node without a port', { nodes: [{ host: 'a' }] }, /"nodes" takes an array/],
    ['Sentinels without a name', { sentinels: NOWHERE }, /"sentinels" and "name" .* go together/],
    ['a name without Sentinels', { url, name: 'main' }, /"sentinels" and "name" .* go together/],
    ['no options', undefined as never, /RedisStore takes an object of options, got undefined/],
    ['an unsafe setting', { url, connection: { maxRetriesPerRequest: 9 } }, /unknown option "maxRetriesPerRequest"/],
    ['a wrong password', { url, connection: { password: 1 } }, /connection: option "password" takes a string/],
    ['connection of a client', { client, connection: {} }, /"connection" is for a client that the store builds/],
    ['a database in a Cluster', { nodes: NOWHERE, connection: { db: 1 } }, /"connection.db" is 0 in a Cluster/],
    ['Sentinels elsewhere', { url, connection: { sentinelPassword: 'a' } }, /"connection.sentinelPassword" goes with/],
  ]
  for (const [what, options, message] of wrong) {
    it(`${what} is refused`, () => {
      const make = () => new RedisStore(options as RedisStoreOptions)
      assert.throws(make, (error: Error) => {
        assert.ok(error instanceof InvalidOptionError, String(error))
        assert.match(error.message, message)
        assert.doesNotMatch(error.message, /secret/)
        return true
      })
    })
  }

  it('what is undefined is absent', async () => {
    const options = { url, client: undefined, keyPrefix: undefined, connection: undefined, deflateFrom: 0 }
    await new RedisStore(options as unknown as RedisStoreOptions).close()
  })
})

describe('options of QuorumRedisStore', () => {
  const stores = [new MemoryStore()]
  const wrong: [what: string, options: object, message: RegExp][] = [
    [
      'a typo',
      { stores, memberTimeout: 1 },
      /QuorumRedisStore: unknown option "memberTimeout"; known options: stores, /,
    ],
    ['no members', { stores: [] }, /option "stores" takes an array of stores/],
    ['stores that are missing', {}, /option "stores" is missing; it takes an array of stores/],
    ['a member that is none', { stores: [{ name: 'url' }] }, /option "stores" takes .* claim, complete,/],
    ['no time', { stores, memberTimeoutMs: 0 }, /option "memberTimeoutMs" takes a whole number of milliseconds from 1/],
    ['a timer over 2^31', { stores, memberTimeoutMs: 2 ** 31 }, /option "memberTimeoutMs" takes/],
    ['strict as a word', { stores, strict: 'no' }, /option "strict" takes true or false/],
  ]
  for (const [what, options, message] of wrong) {
    it(`${what} is refused`, () => {
      const make = () => new QuorumRedisStore(options as never)
      assert.throws(make, (error: Error) => error instanceof InvalidOptionError && message.test(error.message))
    })
  }
})

describe('logging in', () => {
  it('one Redis with a user, a password and a database', async (t) => {
    const redis = await start(t, {
      args: ['--user', 'pay', 'on', `>${PASSWORD}`.replace(' ', ''), '~*', '&*', '+@all'],
    })
    const password = PASSWORD.replace(' ', '')
    await assertWorks(t, { url: redis.url, connection: { username: 'pay', password, db: 3, connectionName: 'pay' } })
    assert.match(await redis.cli('INFO', 'keyspace'), /db3:keys=1/)
    assert.match(await redis.cli('CLIENT', 'LIST'), /name=pay .* user=pay/)
  })

  it('Sentinels and their servers, with a password for each', async (t) => {
    const sentinel = await startSentinel({ replicas: 0 })
    t.after(() => sentinel.stop())
    const master = await sentinel.master()
    for (const each of sentinel.sentinelServers) {
      await each.cli('SENTINEL', 'SET', sentinel.name, 'auth-pass', PASSWORD)
      await each.cli('ACL', 'SETUSER', 'default', 'resetpass', '>sentinel')
    }
    await master.cli('CONFIG', 'SET', 'requirepass', PASSWORD)
    const { sentinels, name } = sentinel
    const connection = { password: PASSWORD, sentinelPassword: 'sentinel' }
    await assertWorks(t, { sentinels, name, connection })
    assert.match(await refusalOf(t, { sentinels, name }), /NOAUTH/)
  })

  it('a Cluster with a password', async (t) => {
    const cluster = await startCluster({ masters: 1, replicas: 0 })
    t.after(() => cluster.stop())
    await cluster.servers[0]?.cli('CONFIG', 'SET', 'requirepass', PASSWORD)
    await assertWorks(t, { nodes: cluster.nodes, connection: { password: PASSWORD } })
    assert.match(await refusalOf(t, { nodes: cluster.nodes }), /NOAUTH/)
  })
})

describe('what cannot connect says why', { concurrency: 4 }, () => {
  it('nobody listens', async (t) => {
    const [single, behindSentinel, cluster] = await Promise.all([
      refusalOf(t, { url: 'redis://127.0.0.1:1' }),
      refusalOf(t, { sentinels: NOWHERE, name: 'main' }),
      refusalOf(t, { nodes: NOWHERE }),
    ])
    assert.match(single, /not reachable .*: .*ECONNREFUSED/)
    assert.match(behindSentinel, /not reachable .*: All sentinels are unreachable/)
    assert.match(cluster, /not reachable .*: Failed to refresh slots cache/)
  })

  for (const [major, connect] of [
    ['5', (port: number, options: object) => new Redis5(port, options)],
    ['6', (port: number, options: object) => new Redis(port, options)],
  ] as const) {
    it(`ioredis ${major}, handed over: a wrong password, or none`, async (t) => {
      const redis = await start(t, {})
      await redis.cli('CONFIG', 'SET', 'requirepass', PASSWORD)
      const answers = ['wrong', undefined].map(async (password) => {
        const client = connect(redis.port, { ...(password && { password }), retryStrategy: () => 50 })
        t.after(() => client.disconnect())
        const refusal = await refusalOf(t, { client })
        assert.equal(client.listenerCount('error'), 0, 'a listener of the check stays on the client')
        return refusal
      })
      const [wrong = '', none = ''] = await Promise.all(answers)
      assert.match(wrong, /WRONGPASS/)
      assert.match(none, /NOAUTH/)
    })
  }
})

describe('rediss://', () => {
  it('a certificate that is trusted works; one that is not is named', async (t) => {
    const folder = newFolder('tls')
    await createCertificate(folder)
    const tlsPort = await freePort()
    const [cert, key] = ['cert.pem', 'key.pem'].map((name) => join(folder, name)) as [string, string]
    const files = ['--tls-cert-file', cert, '--tls-key-file', key, '--tls-ca-cert-file', cert]
    await start(t, { args: ['--tls-port', String(tlsPort), '--tls-auth-clients', 'no', ...files] })
    const url = `rediss://127.0.0.1:${tlsPort}`
    await assertWorks(t, { url, connection: { tls: { ca: readFileSync(cert) } } })
    assert.match(await refusalOf(t, { url }), /not reachable .*: .*self-signed certificate/)
  })
})

async function createCertificate(folder: string): Promise<void> {
  const names = ['-subj', '/CN=localhost', '-addext', 'subjectAltName=IP:127.0.0.1']
  const args = ['req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', '2', ...names]
  await promisify(execFile)('openssl', [...args, '-keyout', 'key.pem', '-out', 'cert.pem'], { cwd: folder })
}

describe('a client that was handed over', () => {
  it('has no listener of the store any more when the store is closed', async (t) => {
    const redis = await start(t, {})
    const cluster = await startCluster({ masters: 1, replicas: 0 })
    t.after(() => cluster.stop())
    const clients = [new Redis(redis.url), new Cluster([...cluster.nodes])]
    t.after(() => clients.forEach((client) => void client.disconnect()))
    for (const client of clients) {
      const counts = () => ['ready', 'error', 'end'].map((event) => client.listenerCount(event))
      const before = counts()
      const store = new RedisStore({ client })
      await store.check()
      assert.notDeepEqual(counts(), before, 'the store does not listen at all')
      await store.close()
      assert.deepEqual(counts(), before)
    }
  })
})
