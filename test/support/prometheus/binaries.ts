/** The Prometheus programs that the tests start. */

import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { programsOf } from '../apt.ts'

export interface PrometheusBinaries {
  readonly prometheus: string
  readonly promtool: string
}

const HOW_TO_GET_THEM =
  'These tests start a real Prometheus and need prometheus and promtool on the PATH: ' +
  '`apt-get install prometheus` (Debian, Ubuntu), `brew install prometheus` (macOS).'

let binaries: Promise<PrometheusBinaries> | undefined

/** Finds the programs, installing them first where that is possible; otherwise says what to do. */
export function prometheusBinaries(): Promise<PrometheusBinaries> {
  binaries ??= programsOf({
    name: 'prometheus',
    programs: ['prometheus', 'promtool'],
    howToGet: HOW_TO_GET_THEM,
  })
  return binaries
}

/** Runs promtool; rejects with all that it printed when it finds a fault. */
export async function promtool(...args: readonly string[]): Promise<string> {
  const { promtool: program } = await prometheusBinaries()
  try {
    return (await promisify(execFile)(program, args)).stdout
  } catch (error) {
    const { stdout = '', stderr = '' } = error as { stdout?: string; stderr?: string }
    throw new Error(`promtool ${args.join(' ')}\n${stdout}${stderr}`)
  }
}
