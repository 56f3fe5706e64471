/**
 * Child processes that never outlive the test process, however it ends, and the folders and ports that they use.
 *
 * On a normal exit they are killed here. For all other ends (SIGKILL, SIGTERM, a crash) a guard, a shell in a session
 * of its own, waits for the end of its input: a pipe that the kernel closes when the test process is gone.
 */

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, mkdirSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { until } from '../stores.ts'

/** Kills all whose pid is the name of a file in `$1/pids`, and removes `$1`. */
const GUARD_SCRIPT = `
trap '' HUP INT TERM
cat >/dev/null
for file in "$1"/pids/*; do
  pid=\${file##*/}
  [ "$pid" = '*' ] || kill -9 "$pid" 2>/dev/null
done
rm -rf "$1"
[ ! -e "$1" ] || { sleep 0.2; rm -rf "$1"; }
`

const running = new Set<ChildProcess>()
let workspace: string | undefined

/** A new folder, gone when the test process is. */
export function newFolder(prefix: string): string {
  return mkdtempSync(join(workspaceFolder(), `${prefix}-`))
}

/** Removes a folder whose last writer may be dying still. */
export function removeFolder(folder: string): void {
  rmSync(folder, { recursive: true, force: true, maxRetries: 5, retryDelay: 20 })
}

function workspaceFolder(): string {
  workspace ??= createWorkspace()
  return workspace
}

function createWorkspace(): string {
  const folder = mkdtempSync(join(tmpdir(), 'fastify-idempotency-'))
  mkdirSync(join(folder, 'pids'))
  startGuard(folder)
  process.on('exit', () => {
    for (const child of running) child.kill('SIGKILL')
    removeFolder(folder)
  })
  return folder
}

function startGuard(folder: string): void {
  const guard = spawn('sh', ['-c', GUARD_SCRIPT, 'sh', folder], {
    detached: true,
    stdio: ['pipe', 'ignore', 'ignore'],
  })
  guard.unref()
  const input = guard.stdin as unknown as Socket
  input.unref()
}

/** Starts a program with its output in `<folder>/log`. It does not keep the test process alive. */
export function startChild(program: string, args: readonly string[], folder: string): ChildProcess {
  const log = openSync(logOf(folder), 'a')
  const child = spawn(program, args, { cwd: folder, stdio: ['ignore', log, log] })
  closeSync(log)
  child.unref()
  child.once('error', () => {})
  if (child.pid === undefined) throw new Error(`cannot start ${program}`)
  const pidFile = join(workspaceFolder(), 'pids', String(child.pid))
  writeFileSync(pidFile, '')
  running.add(child)
  child.once('exit', () => {
    running.delete(child)
    rmSync(pidFile, { force: true })
  })
  return child
}

export function hasEnded(child: ChildProcess): boolean {
  return child.exitCode !== null || child.signalCode !== null
}

/** Sends a signal that ends the child, and waits for its end. */
export async function endChild(child: ChildProcess, signal: 'SIGKILL' | 'SIGTERM'): Promise<void> {
  if (hasEnded(child)) return
  const ended = once(child, 'exit')
  // So that the event loop stays up until it has ended.
  child.ref()
  child.kill(signal)
  await ended
}

/** The last lines that the program printed. */
export function logTail(folder: string): string {
  return readFileSync(logOf(folder), 'utf8').split('\n').slice(-12).join('\n')
}

function logOf(folder: string): string {
  return join(folder, 'log')
}

/** What a Redis Cluster node adds to its port to get that of its bus. */
export const BUS_OFFSET = 10_000

/** Ports given to servers that may not listen yet. */
const handedOut = new Set<number>()

/**
 * A port on which nobody listens, nor on that of the cluster bus. Both are below those that the kernel gives to
 * outgoing connections, one of which would otherwise take a port between `kill` and `restart`.
 */
export async function freePort(): Promise<number> {
  for (;;) {
    const port = 11_000 + Math.floor(Math.random() * 10_000)
    if (handedOut.has(port)) continue
    handedOut.add(port)
    if ((await isFree(port)) && (await isFree(port + BUS_OFFSET))) return port
  }
}

/** `count` ports, each as {@link freePort} finds them. */
export function freePorts(count: number): Promise<number[]> {
  return Promise.all(Array.from({ length: count }, freePort))
}

async function isFree(port: number): Promise<boolean> {
  const server = createServer()
  try {
    await once(server.listen(port, '127.0.0.1'), 'listening')
    return true
  } catch {
    return false
  } finally {
    server.close()
  }
}

/** `until`, for what takes servers longer: asks every 20 ms, gives up after 20 s. */
export function eventually(what: string, condition: () => boolean | Promise<boolean>): Promise<void> {
  return until(what, condition, { every: 20, within: 20_000 })
}
