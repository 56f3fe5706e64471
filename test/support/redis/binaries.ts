/** The Redis programs that the tests start. */

import { isExecutable, programsOf } from '../apt.ts'

/** Paths of the programs. A Sentinel is `server` with `--sentinel`. */
export interface RedisBinaries {
  readonly server: string
}

const HOW_TO_GET_REDIS =
  'These tests start real Redis servers and need redis-server on the PATH: ' +
  '`apt-get install redis-server` (Debian, Ubuntu), `brew install redis` (macOS). ' +
  'Or set REDIS_SERVER to the path of another one, valkey-server included, ' +
  'or REDIS_URL to a running server, for the tests that neither stop nor configure it.'

const HOW_TO_GET_VALKEY =
  'These tests start real Valkey servers and need valkey-server on the PATH: ' +
  '`apt-get install valkey-server` (Debian 13; on Debian 12 with bookworm-backports among the sources), ' +
  '`brew install valkey` (macOS). ' +
  'Or set VALKEY_SERVER to its path.'

let binaries: Promise<RedisBinaries> | undefined

/** The program of `REDIS_SERVER`, or redis-server, installed first where that is possible; otherwise says what to do. */
export function redisBinaries(): Promise<RedisBinaries> {
  binaries ??= find('REDIS_SERVER', 'redis-server', HOW_TO_GET_REDIS)
  return binaries
}

/**
 * From here on the servers of this test process are those of `VALKEY_SERVER`, or valkey-server, installed first where
 * that is possible; otherwise says what to do.
 */
export async function useValkey(): Promise<void> {
  binaries = find('VALKEY_SERVER', 'valkey-server', HOW_TO_GET_VALKEY)
  await binaries
}

async function find(variable: string, program: string, howToGet: string): Promise<RedisBinaries> {
  const path = process.env[variable]
  if (path && !isExecutable(path)) throw new Error(`${variable} is ${path}, which is not a program. ${howToGet}`)
  if (path) return { server: path }
  const found = await programsOf({ name: program, programs: [program], howToGet })
  return { server: found[program] as string }
}
