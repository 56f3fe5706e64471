/** The Redis programs that the tests start. */

import { programsOf } from '../apt.ts'

/** Paths of the programs. A Sentinel is `server` with `--sentinel`. */
export interface RedisBinaries {
  readonly server: string
  readonly cli: string
}

const HOW_TO_GET_THEM =
  'These tests start real Redis servers and need redis-server and redis-cli on the PATH: ' +
  '`apt-get install redis-server` (Debian, Ubuntu), `brew install redis` (macOS). ' +
  'Or set REDIS_URL to a running server, for the tests that neither stop nor configure it.'

let binaries: Promise<RedisBinaries> | undefined

/** Finds the programs, installing them first where that is possible; otherwise says what to do. */
export function redisBinaries(): Promise<RedisBinaries> {
  binaries ??= find()
  return binaries
}

async function find(): Promise<RedisBinaries> {
  const found = await programsOf({
    name: 'redis-server',
    programs: ['redis-server', 'redis-cli'],
    howToGet: HOW_TO_GET_THEM,
  })
  return { server: found['redis-server'], cli: found['redis-cli'] }
}
