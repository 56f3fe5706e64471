/** What README and docs show compiles, and what they link to is there. */

import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join, resolve } from 'node:path'
import { test } from 'node:test'
import { promisify } from 'node:util'
import { resolveOptions } from '../src/options.ts'

const run = promisify(execFile)
const root = resolve(import.meta.dirname, '..')
const docs = readdirSync(join(root, 'docs'), { recursive: true, encoding: 'utf8' }).map((name) => join('docs', name))
const pages = ['README.md', 'CONTRIBUTING.md', ...docs].filter((name) => name.endsWith('.md'))
const textOf = (page: string) => readFileSync(join(root, page), 'utf8')

const blocksOf = (page: string) => [...textOf(page).matchAll(/^```ts\n(.*?)^```$/gms)].map(([, code = '']) => code)

test('every TypeScript block compiles', { timeout: 120_000 }, async () => {
  const folder = join(root, 'node_modules', '.cache', 'docs')
  rmSync(folder, { recursive: true, force: true })
  mkdirSync(folder, { recursive: true })
  // The store that a page on writing one imports.
  writeFileSync(join(folder, 'my-store.ts'), "export { TinyStore as MyStore } from '../../../examples/tiny-store.ts'\n")
  let blocks = 0
  for (const page of pages) {
    for (const code of blocksOf(page)) {
      writeFileSync(join(folder, `${page.replace(/\W/g, '-')}-${++blocks}.ts`), `${code}export {}\n`)
    }
  }
  assert.ok(blocks >= 2)
  const paths = {
    'fastify-idempotency': ['../../../src/index.ts'],
    'fastify-idempotency/redis': ['../../../src/stores/redis/index.ts'],
    'fastify-idempotency/dynamodb': ['../../../src/stores/dynamodb/index.ts'],
    'fastify-idempotency/testing': ['../../../src/testing/store-conformance.ts'],
  }
  const config = { extends: '../../../tsconfig.json', compilerOptions: { paths }, include: ['*.ts'] }
  writeFileSync(join(folder, 'tsconfig.json'), JSON.stringify(config))
  const tsc = join(root, 'node_modules', '.bin', 'tsc')
  await run(tsc, ['-p', folder], { cwd: root }).catch((error: { stdout: string }) => assert.fail(error.stdout))
})

test('every link to a file leads to one', () => {
  for (const page of pages) {
    for (const [, target = ''] of textOf(page).matchAll(/\]\(([^)#]+)(?:#[^)]*)?\)/g)) {
      if (/^[a-z]+:/.test(target)) continue
      assert.ok(existsSync(join(root, dirname(page), target)), `${page} links to ${target}`)
    }
  }
})

test('the options table of the README has every option with its default', () => {
  const rows = new Map(
    [...textOf('README.md').matchAll(/^\| `(\w+)`(?: †)?\s*\| (.*?)\s*\| /gm)].map(([, name = '', value = '']) => [
      name,
      value,
    ]),
  )
  const { route, methods, global } = resolveOptions({})
  const defaults: Record<string, unknown> = { ...route, methods: [...methods], global }
  for (const [name, value] of Object.entries(defaults)) {
    const shown = rows.get(name)
    assert.notEqual(shown, undefined, `${name} is missing`)
    if (typeof value === 'function') continue
    const text = JSON.stringify(value).replaceAll('"', "'").replaceAll(',', ', ')
    assert.equal(shown?.replaceAll('_', '').replaceAll('`', ''), text, name)
  }
})
