/** A Dockerfile, and its first stage carried out in a folder: where there is no Docker, its steps can be wrong too. */

import { execFile } from 'node:child_process'
import { cpSync, existsSync, mkdirSync, readFileSync, symlinkSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'

interface Instruction {
  readonly name: string
  readonly text: string
}

/** The instructions of each stage. */
export function stagesOf(file: string): Instruction[][] {
  const joined = readFileSync(file, 'utf8')
    .replaceAll(/^#.*\n/gm, '')
    .replaceAll(/\\\n/g, '')
  const stages: Instruction[][] = []
  for (const line of joined.split('\n').filter(Boolean)) {
    const [, name = '', text = ''] = /^(\w+)\s+(.*)$/.exec(line) ?? []
    if (name === 'FROM') stages.push([])
    stages.at(-1)?.push({ name, text })
  }
  return stages
}

/**
 * Carries out COPY, WORKDIR and RUN of a stage with `root` in place of `/`. `npm ci` is not run: the packages that are
 * here are the ones that it would install.
 */
export async function carryOut(stage: readonly Instruction[], context: string, root: string): Promise<void> {
  const inRoot = (text: string) => text.replaceAll(/(?<=^|[\s'"])\/(src|app|tmp)\b/g, `${root}/$1`)
  let folder = root
  mkdirSync(join(root, 'tmp'))
  for (const { name, text } of stage) {
    if (name === 'WORKDIR') {
      folder = inRoot(text)
      mkdirSync(folder, { recursive: true })
    } else if (name === 'COPY') {
      const names = text.split(' ')
      const target = join(folder, names.pop() ?? '')
      for (const source of names) cpSync(join(context, source), names.length > 1 ? join(target, source) : target, COPY)
    } else if (name === 'RUN' && text.startsWith('npm ci')) {
      symlinkSync(join(context, 'node_modules'), join(folder, 'node_modules'))
    } else if (name === 'RUN') {
      await shell(inRoot(text), folder)
    }
  }
}

/** What is built here is not sent to Docker: `.dockerignore`. */
const COPY = { recursive: true, filter: (path: string) => !path.endsWith('/examples/dist') }

async function shell(script: string, cwd: string): Promise<void> {
  try {
    await promisify(execFile)('sh', ['-c', script], { cwd, env: { ...process.env, NODE_TEST_CONTEXT: undefined } })
  } catch (error) {
    const { stdout = '', stderr = '' } = error as { stdout?: string; stderr?: string }
    throw new Error(`RUN ${script}\n${stdout}\n${stderr}`)
  }
}

/** The sources of a stage's COPY instructions that are not there. */
export function missingSources(stage: readonly Instruction[], context: string): string[] {
  const copied = stage.filter(({ name, text }) => name === 'COPY' && !text.startsWith('--from'))
  const sources = copied.flatMap(({ text }) => text.split(' ').slice(0, -1))
  return sources.filter((source) => !existsSync(join(context, source)))
}
