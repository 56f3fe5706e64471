/** The Redis programs that the tests start: those on the PATH, or installed once from Debian's package. */

import { execFile } from 'node:child_process'
import { accessSync, constants, existsSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { delimiter, join } from 'node:path'
import { promisify } from 'node:util'

/** Paths of the programs. A Sentinel is `server` with `--sentinel`. */
export interface RedisBinaries {
  readonly server: string
  readonly cli: string
}

const HOW_TO_GET_THEM =
  'These tests start real Redis servers and need redis-server and redis-cli on the PATH: ' +
  '`apt-get install redis-server` (Debian, Ubuntu), `brew install redis` (macOS). ' +
  'Or set REDIS_URL to a running server, for the tests that neither stop nor configure it.'

const INSTALL_TIMEOUT_MS = 300_000

/** Shared by all that installs packages for these tests, so that two test files do not run apt at the same time. */
const LOCK_FILE = join(tmpdir(), 'fastify-idempotency-apt.lock')

/**
 * Installs the package without starting its service on port 6379. Run under `flock`, which lets go when it dies;
 * a policy left aside by a run that was killed is put back by the next.
 */
const INSTALL_SCRIPT = `
set -e
command -v redis-server >/dev/null && command -v redis-cli >/dev/null && exit 0
policy=/usr/sbin/policy-rc.d
aside=$policy.before-fastify-idempotency
restore() { rm -f "$policy"; if [ -e "$aside" ]; then mv "$aside" "$policy"; fi; }
trap restore EXIT
trap 'exit 1' INT TERM HUP
if [ -e "$policy" ] && [ ! -e "$aside" ]; then mv "$policy" "$aside"; fi
printf '#!/bin/sh\\nexit 101\\n' >"$policy"
chmod 755 "$policy"
export DEBIAN_FRONTEND=noninteractive
# The lock on the package lists is not one that apt can be told to wait for.
tries=0
until apt-get update -qq; do
  tries=$((tries + 1))
  [ "$tries" -lt 20 ] || exit 1
  sleep 2
done
apt-get -o DPkg::Lock::Timeout=240 install -qq -y --no-install-recommends redis-server
`

let binaries: Promise<RedisBinaries> | undefined

/** Finds the programs, installing them first where that is possible; otherwise says what to do. */
export function redisBinaries(): Promise<RedisBinaries> {
  binaries ??= findOrInstall()
  return binaries
}

async function findOrInstall(): Promise<RedisBinaries> {
  const present = onPath()
  if (present) return present
  if (!canInstall()) throw new Error(HOW_TO_GET_THEM)
  await install()
  const installed = onPath()
  if (!installed) throw new Error(HOW_TO_GET_THEM)
  return installed
}

function onPath(): RedisBinaries | undefined {
  const server = which('redis-server')
  const cli = which('redis-cli')
  return server && cli ? { server, cli } : undefined
}

function which(program: string): string | undefined {
  const candidates = (process.env['PATH'] ?? '').split(delimiter).map((folder) => join(folder, program))
  return candidates.find(isExecutable)
}

function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK)
    return true
  } catch {
    return false
  }
}

function canInstall(): boolean {
  return process.getuid?.() === 0 && existsSync('/etc/debian_version') && which('apt-get') !== undefined
}

async function install(): Promise<void> {
  try {
    await promisify(execFile)('flock', [LOCK_FILE, 'sh', '-c', INSTALL_SCRIPT], { timeout: INSTALL_TIMEOUT_MS })
  } catch (error) {
    throw new Error(`apt-get could not install redis-server. ${HOW_TO_GET_THEM}`, { cause: error })
  }
}
