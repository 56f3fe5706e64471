/** The demo of `npm start` as a child process on loopback. */

import { join } from 'node:path'
import { endChild, eventually, freePort, hasEnded, logTail, newFolder, startChild } from './redis/processes.ts'

export interface Demo {
  readonly url: string
  /** `host:port`, as Prometheus takes it. */
  readonly target: string
  /** Ends it at once, as a crash does. */
  kill(): Promise<void>
  /** Ends it in good order. */
  stop(): Promise<void>
}

const ROOT = join(import.meta.dirname, '..', '..')
/** From source. By absolute paths, because a child runs in its own folder. */
const PROGRAM = [
  '--import',
  join(ROOT, 'node_modules', 'tsx', 'dist', 'loader.mjs'),
  join(ROOT, 'examples', 'server.ts'),
]

/** Starts one with these environment variables, and waits until it answers. */
export async function startDemo(env: Readonly<Record<string, string>> = {}, program = PROGRAM): Promise<Demo> {
  const folder = newFolder('demo')
  const port = await freePort()
  const variables = { PORT: String(port), TSX_TSCONFIG_PATH: join(ROOT, 'tsconfig.json'), ...env }
  const assignments = Object.entries(variables).map(([name, value]) => `${name}=${value}`)
  const child = startChild('env', [...assignments, process.execPath, ...program], folder)
  const url = `http://127.0.0.1:${port}`
  await eventually('the demo to answer', async () => {
    if (hasEnded(child)) throw new Error(`the demo ended at once:\n${logTail(folder)}`)
    return fetch(`${url}/healthz`).then(
      ({ ok }) => ok,
      () => false,
    )
  })
  return {
    url,
    target: `127.0.0.1:${port}`,
    kill: () => endChild(child, 'SIGKILL'),
    stop: () => endChild(child, 'SIGTERM'),
  }
}
