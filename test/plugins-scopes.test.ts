/** Where the plugin applies: children, prefixes, several instances, methods, and `config.idempotency`. */

import assert from 'node:assert/strict'
import { type TestContext, test } from 'node:test'
import fastify, { type FastifyInstance } from 'fastify'
import fastifyPlugin from 'fastify-plugin'
import idempotency, { type IdempotencyOptions, MemoryStore } from '../src/index.ts'
import { createApp, logCollector, post } from './support/app.ts'
import { COVERED, countedRoute, twice, UNCOVERED } from './support/counted-route.ts'
import { intercepted, watchedStore } from './support/stores.ts'

/** An app without the plugin. */
function bareApp(t: TestContext): FastifyInstance {
  const app = fastify()
  t.after(() => app.close())
  return app
}

/** A memory store that also remembers the scoped keys it was asked for. */
function keyedStore() {
  const keys = new Set<string>()
  const inner = new MemoryStore()
  const store = {
    ...intercepted(inner, (_operation, perform) => perform()),
    claim: (request: Parameters<MemoryStore['claim']>[0]) => {
      keys.add(request.scopedKey)
      return inner.claim(request)
    },
  }
  return { store, keys }
}

test('in a prefixed child: routes of the child are covered, those outside are not', async (t) => {
  const app = bareApp(t)
  const { store, keys } = keyedStore()
  await app.register(
    async (child) => {
      await child.register(idempotency, { store, metrics: false })
      countedRoute(child, '/payments')
    },
    { prefix: '/v1' },
  )
  countedRoute(app, '/payments')
  assert.deepEqual(await twice(app, '/v1/payments'), COVERED)
  assert.deepEqual(await twice(app, '/payments'), UNCOVERED)
  assert.deepEqual([...keys], ['idem#v1#anonymous#POST:/v1/payments#k'])
  assert.equal(app.hasDecorator('idempotency'), false)
})

test('registered with a prefix of its own, as any plugin may be, the options are still accepted', async (t) => {
  const app = bareApp(t)
  await app.register(idempotency, { metrics: false, prefix: '/v1' })
  countedRoute(app, '/payments')
  assert.deepEqual(await twice(app, '/payments'), COVERED)
})

test('one handler under two prefixes: two scoped keys, two executions', async (t) => {
  const { store, keys } = keyedStore()
  const app = await createApp(t, { store })
  const routes = async (child: FastifyInstance) => void countedRoute(child, '/payments')
  await app.register(routes, { prefix: '/v1' })
  await app.register(routes, { prefix: '/v2' })
  assert.deepEqual(await twice(app, '/v1/payments'), COVERED)
  assert.deepEqual(await twice(app, '/v2/payments'), COVERED)
  assert.deepEqual([...keys], ['idem#v1#anonymous#POST:/v1/payments#k', 'idem#v1#anonymous#POST:/v2/payments#k'])
})

test('one handler function on two routes: each route is covered as itself', async (t) => {
  const { store, keys } = keyedStore()
  const app = await createApp(t, { store })
  let runs = 0
  const handler = async () => ({ run: ++runs })
  app.post('/payments', handler)
  app.post('/refunds', { config: { idempotency: false } }, handler)
  app.post('/payouts', handler)
  assert.deepEqual(await twice(app, '/payments'), COVERED)
  assert.deepEqual(await twice(app, '/refunds'), UNCOVERED)
  assert.deepEqual(await twice(app, '/payouts'), COVERED)
  assert.equal(keys.size, 2)
})

test('two siblings with a store each: each records in its own', async (t) => {
  const app = bareApp(t)
  const stores = [watchedStore(), watchedStore()]
  for (const [i, { store }] of stores.entries()) {
    await app.register(
      async (child) => {
        await child.register(idempotency, { store, metrics: false })
        assert.equal(child.idempotency.store, store)
        countedRoute(child, '/payments')
      },
      { prefix: `/${i}` },
    )
  }
  assert.deepEqual(await twice(app, '/0/payments'), COVERED)
  assert.deepEqual(
    stores.map(({ calls }) => calls),
    [['claim', 'complete', 'claim'], []],
  )
  assert.deepEqual(await twice(app, '/1/payments'), COVERED)
  assert.deepEqual(stores[1]?.calls, ['claim', 'complete', 'claim'])
})

/** The plugin on the root and again in a child; the root's routes are registered last. */
async function rootAndChild(
  t: TestContext,
  childOptions: IdempotencyOptions = {},
  between?: (app: FastifyInstance) => void,
) {
  const outer = watchedStore()
  const inner = watchedStore()
  const app = await createApp(t, { store: outer.store })
  between?.(app)
  await app.register(
    async (child) => {
      await child.register(idempotency, { store: inner.store, metrics: false, ...childOptions })
      assert.equal(child.idempotency.store, inner.store)
      countedRoute(child, '/payments')
      countedRoute(child, '/off', { config: { idempotency: false } })
      await child.register(async (grandchild) => void countedRoute(grandchild, '/deep'))
    },
    { prefix: '/child' },
  )
  countedRoute(app, '/payments')
  return { app, outer: outer.calls, inner: inner.calls, outerStore: outer.store }
}

test("on the root and again in a child: the child's store has its routes' records, written once", async (t) => {
  const { app, outer, inner, outerStore } = await rootAndChild(t)
  for (const url of ['/child/payments', '/child/deep']) {
    inner.length = 0
    assert.deepEqual(await twice(app, url), COVERED)
    assert.deepEqual(inner, ['claim', 'complete', 'claim'])
  }
  assert.deepEqual(outer, [])
  assert.equal(app.idempotency.store, outerStore)
  assert.deepEqual(await twice(app, '/payments'), COVERED)
  assert.deepEqual(outer, ['claim', 'complete', 'claim'])
  assert.deepEqual(await twice(app, '/child/off'), UNCOVERED)
})

test("on the root and again in a child with { global: false }: the child's routes are not covered by the root", async (t) => {
  const { app, outer, inner } = await rootAndChild(t, { global: false })
  assert.deepEqual(await twice(app, '/child/payments'), UNCOVERED)
  assert.deepEqual([...outer, ...inner], [])
})

test("on the root and again in a child, and a plugin between that wraps handlers: the child's record alone, and it ends", async (t) => {
  const wrapHandlers = (app: FastifyInstance) => {
    app.addHook('onRoute', (route) => {
      const { handler } = route
      route.handler = function (request, reply) {
        return handler.call(this, request, reply)
      }
    })
  }
  const { app, outer, inner } = await rootAndChild(t, {}, wrapHandlers)
  const answers = [await post(app, '/child/payments', 'k'), await post(app, '/child/payments', 'k')]
  assert.deepEqual(
    answers.map(({ statusCode }) => statusCode),
    [200, 200],
  )
  assert.deepEqual(inner, ['claim', 'complete', 'claim'])
  assert.deepEqual(outer, [])
})

test('registered twice on one instance: a clear error', async (t) => {
  const app = await createApp(t)
  const again = Promise.resolve(app.register(idempotency, { metrics: false }))
  await assert.rejects(again, /fastify-idempotency: already registered on this instance/)
})

test('registered by two fastify-plugin packages on one instance: a clear error', async (t) => {
  const app = bareApp(t)
  const bundle = (name: string) =>
    fastifyPlugin(
      async (instance: FastifyInstance) => void (await instance.register(idempotency, { metrics: false })),
      {
        name,
      },
    )
  await app.register(bundle('payments'))
  await assert.rejects(Promise.resolve(app.register(bundle('orders'))), /already registered on this instance/)
})

test('a child registered before the plugin is left alone; routes of the root after it are covered', async (t) => {
  const app = bareApp(t)
  await app.register(async (child) => void countedRoute(child, '/before'))
  await app.register(idempotency, { metrics: false })
  countedRoute(app, '/after')
  assert.deepEqual(await twice(app, '/before'), UNCOVERED)
  assert.deepEqual(await twice(app, '/after'), COVERED)
})

test('a route that asks to be covered but was added before the plugin had loaded is named in a warning', async (t) => {
  const { lines, logger } = logCollector('warn')
  const app = fastify({ logger })
  t.after(() => app.close())
  app.register(idempotency, { metrics: false }) // not awaited, so it loads after the route below was added
  countedRoute(app, '/payments', { config: { idempotency: true } })
  await app.ready()
  const isCovered = (await twice(app, '/payments'))[1] === 'replayed'
  assert.ok(isCovered || lines.some(({ msg }) => /await/.test(msg)), 'neither covered nor warned about')
})

for (const constraint of ['host', 'version'] as const) {
  test(`two routes that only a ${constraint} constraint tells apart never replay each other's answers`, async (t) => {
    const app = await createApp(t)
    const values = constraint === 'host' ? ['a.example', 'b.example'] : ['1.0.0', '2.0.0']
    const answers: string[] = []
    for (const value of values) {
      app.post('/payments', { constraints: { [constraint]: value } }, async () => ({ of: value }))
    }
    for (const value of values) {
      const headers = { [constraint === 'host' ? 'host' : 'accept-version']: value }
      answers.push((await post(app, '/payments', 'k', { headers })).body)
    }
    assert.equal(answers[0], JSON.stringify({ of: values[0] }))
    assert.notEqual(answers[1], answers[0])
  })
}

const TRAILING_SLASH: readonly {
  readonly mode: 'both' | 'slash' | 'no-slash'
  readonly urls: readonly string[]
}[] = [
  { mode: 'both', urls: ['/v1/payments', '/v1/payments/'] },
  { mode: 'slash', urls: ['/v1/payments/'] },
  { mode: 'no-slash', urls: ['/v1/payments'] },
]

for (const { mode, urls } of TRAILING_SLASH) {
  for (const url of urls) {
    test(`prefix and the route '/' (prefixTrailingSlash: '${mode}'): ${url} is covered`, async (t) => {
      const { store, calls } = watchedStore()
      const app = await createApp(t, { store })
      await app.register(async (child) => void countedRoute(child, '/', { prefixTrailingSlash: mode }), {
        prefix: '/v1/payments',
      })
      assert.deepEqual(await twice(app, url), COVERED)
      assert.deepEqual(calls, ['claim', 'complete', 'claim'])
    })
  }
}

test("prefix and the route '/': a retry with a slash more never runs a second time", async (t) => {
  const app = await createApp(t)
  let runs = 0
  const routes = async (child: FastifyInstance) => void child.post('/', async () => ({ run: ++runs }))
  await app.register(routes, { prefix: '/v1/payments' })
  await post(app, '/v1/payments', 'k')
  await post(app, '/v1/payments/', 'k')
  assert.equal(runs, 1)
})

test("prefix and the route '/' with config.idempotency: false: neither form is covered", async (t) => {
  const { store, calls } = watchedStore()
  const app = await createApp(t, { store })
  await app.register(async (child) => void countedRoute(child, '/', { config: { idempotency: false } }), {
    prefix: '/v1/payments',
  })
  assert.deepEqual(await twice(app, '/v1/payments'), UNCOVERED)
  assert.deepEqual(await twice(app, '/v1/payments/'), UNCOVERED)
  assert.deepEqual(calls, [])
})
