/** The DynamoDB-compatible server that the tests start: on the PATH, or fetched once from npm. */

import { execFile } from 'node:child_process'
import { mkdirSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { isExecutable, which } from '../apt.ts'

const VERSION = '1.2.1'
const PACKAGE = `@dynoxide/linux-x64@${VERSION}`
const FOLDER = join(tmpdir(), `fastify-idempotency-dynoxide-${VERSION}`)
const FETCHED = join(FOLDER, 'node_modules', '@dynoxide', 'linux-x64', 'dynoxide')
const FETCH_TIMEOUT_MS = 300_000

const HOW_TO_GET_IT =
  'These tests need a DynamoDB-compatible server: `dynoxide` on the PATH, or, on Linux x64, npm to fetch ' +
  `${PACKAGE}. Or set DYNAMODB_ENDPOINT to a running one (docker compose up dynamodb), for the tests that do not stop it.`

/** Test files run at the same time: one fetches, the others wait for it. Run under `flock`, which lets go when it dies. */
const FETCH_SCRIPT = `[ -x "$1" ] || npm install --prefix "$2" --no-save --no-audit --no-fund --loglevel error "$3"`

let binary: Promise<string> | undefined

/** Path of the program, fetched first where that is possible; otherwise says what to do. */
export function dynoxideBinary(): Promise<string> {
  binary ??= findOrFetch()
  return binary
}

async function findOrFetch(): Promise<string> {
  const present = which('dynoxide')
  if (present !== undefined) return present
  if (process.platform !== 'linux' || process.arch !== 'x64') throw new Error(HOW_TO_GET_IT)
  mkdirSync(FOLDER, { recursive: true })
  const args = [join(FOLDER, 'fetch.lock'), 'sh', '-c', FETCH_SCRIPT, 'sh', FETCHED, FOLDER, PACKAGE]
  try {
    await promisify(execFile)('flock', args, { timeout: FETCH_TIMEOUT_MS })
  } catch (error) {
    throw new Error(`npm could not fetch ${PACKAGE}. ${HOW_TO_GET_IT}`, { cause: error })
  }
  if (!isExecutable(FETCHED)) throw new Error(HOW_TO_GET_IT)
  return FETCHED
}
