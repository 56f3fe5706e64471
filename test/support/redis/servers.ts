/** Redis servers as child processes on loopback: own port, own folder, no config outside it, gone with the test. */

import type { ChildProcess } from 'node:child_process'
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { Redis } from 'ioredis'
import { redisBinaries } from './binaries.ts'
import { endChild, eventually, freePort, hasEnded, logTail, newFolder, removeFolder, startChild } from './processes.ts'

/** A server that a test may use, its own or the one of `REDIS_URL`. */
export interface RedisEndpoint {
  readonly host: string
  readonly port: number
  readonly url: string
  /** Sends one command over a connection of its own; the answer as `redis-cli` prints it, an error as a rejection. */
  cli(...args: readonly (string | number)[]): Promise<string>
  /** Ends the server for good and removes its folder. Does nothing to the server of `REDIS_URL`. */
  stop(): Promise<void>
}

/** A server that belongs to the test. */
export interface RedisServer extends RedisEndpoint {
  /** Of the present process; another one after `restart`. */
  readonly pid: number
  readonly dir: string
  /** Neither killed nor paused. */
  readonly isResponsive: boolean
  /** SIGKILL, as a crash: resolves when the process is gone. */
  kill(): Promise<void>
  /** SIGSTOP: resolves when it does nothing any more. Its connections stay open. */
  pause(): Promise<void>
  /** SIGCONT. */
  resume(): void
  /** Starts it again, same port, folder and arguments; one that runs is first shut down in good order. */
  restart(): Promise<void>
}

export interface RedisOptions {
  /** Further command line arguments, which win over the defaults: `['--maxmemory', '1mb']`. */
  readonly args?: readonly string[]
  /** Append-only file and when it is synced. Default: no persistence at all. */
  readonly aof?: 'always' | 'everysec' | 'no'
  readonly port?: number
  /** Default: a new folder, removed by `stop`. One that is given stays. */
  readonly dir?: string
  /** Files to find in the folder at the first start: contents by name. */
  readonly files?: Readonly<Record<string, string>>
}

/** What a process is started with: these arguments and no others. */
type Launch = Pick<RedisOptions, 'dir' | 'files'> & Required<Pick<RedisOptions, 'port' | 'args'>>

const HOST = '127.0.0.1'

/**
 * A single server. Without options the one of `REDIS_URL`, when that is set: keep to keys of your own there.
 * With options, `{}` included, always a process of the test's own.
 */
export function startRedis(): Promise<RedisEndpoint>
export function startRedis(options: RedisOptions): Promise<RedisServer>
export async function startRedis(options?: RedisOptions): Promise<RedisEndpoint> {
  const external = process.env['REDIS_URL']
  if (external && !options) return externalServer(external)
  const { args = [], aof = 'no', port = await freePort(), ...place } = options ?? {}
  const persistence = ['--save', '', '--appendonly', aof === 'no' ? 'no' : 'yes', '--appendfsync', aof]
  return launchServer({ ...place, port, args: ['--port', String(port), '--bind', HOST, ...persistence, ...args] })
}

/** Starts a process, and waits until it answers. */
export async function launchServer(launch: Launch): Promise<RedisServer> {
  const { server } = await redisBinaries()
  const redis = new RedisProcess(server, launch)
  try {
    await redis.restart()
  } catch (error) {
    await redis.stop()
    throw error
  }
  return redis
}

/** Stops all of them. */
export async function stopAll(servers: readonly RedisEndpoint[]): Promise<void> {
  await Promise.all(servers.map((server) => server.stop()))
}

/** All of them, or none when one does not start. */
export async function startAll(starts: readonly Promise<RedisServer>[]): Promise<RedisServer[]> {
  const results = await Promise.allSettled(starts)
  const started = results.flatMap((result) => (result.status === 'fulfilled' ? [result.value] : []))
  const failed = results.find((result) => result.status === 'rejected')
  if (!failed) return started
  await stopAll(started)
  throw failed.reason
}

/** The value of a `name:value` line, as INFO and CLUSTER INFO answer them. */
export function infoField(info: string, name: string): string | undefined {
  return new RegExp(`^${name}:(.*?)\\r?$`, 'm').exec(info)?.[1]
}

class RedisProcess implements RedisServer {
  readonly host = HOST
  readonly port: number
  readonly dir: string
  readonly url: string
  readonly #program: string
  readonly #launch: Launch
  #child: ChildProcess | undefined
  #isPaused = false

  constructor(program: string, launch: Launch) {
    this.#program = program
    this.#launch = launch
    this.port = launch.port
    this.dir = launch.dir ?? newFolder('redis')
    this.url = `redis://${HOST}:${launch.port}`
    for (const [name, content] of Object.entries(launch.files ?? {})) writeFileSync(join(this.dir, name), content)
  }

  get pid(): number {
    return this.#running().pid as number
  }

  get isResponsive(): boolean {
    return this.#child !== undefined && !hasEnded(this.#child) && !this.#isPaused
  }

  async restart(): Promise<void> {
    if (this.#child) await this.#end('SIGTERM')
    const child = startChild(this.#program, this.#launch.args, this.dir)
    this.#child = child
    await eventually(`Redis on port ${this.port}`, () => this.#isReady(child))
  }

  async kill(): Promise<void> {
    await this.#end('SIGKILL')
  }

  async stop(): Promise<void> {
    await this.#end('SIGKILL')
    if (this.#launch.dir === undefined) removeFolder(this.dir)
  }

  async pause(): Promise<void> {
    const { pid } = this
    process.kill(pid, 'SIGSTOP')
    this.#isPaused = true
    await eventually(`process ${pid} to stand still`, () => isStopped(pid))
  }

  resume(): void {
    process.kill(this.pid, 'SIGCONT')
    this.#isPaused = false
  }

  cli(...args: readonly (string | number)[]): Promise<string> {
    return command(this.url, args)
  }

  /** Another process may have been faster to take the port: what answers must be this one. */
  async #isReady(child: ChildProcess): Promise<boolean> {
    if (hasEnded(child)) throw new Error(`redis-server ended at once:\n${logTail(this.dir)}`)
    const info = await this.cli('info').catch(() => '')
    return infoField(info, 'process_id') === String(child.pid) && infoField(info, 'loading') !== '1'
  }

  #running(): ChildProcess {
    if (!this.#child || hasEnded(this.#child)) throw new Error(`the server of port ${this.port} is not running`)
    return this.#child
  }

  async #end(signal: 'SIGKILL' | 'SIGTERM'): Promise<void> {
    if (this.#isPaused) this.resume()
    if (this.#child) await endChild(this.#child, signal)
  }
}

/** On Linux as the kernel says; elsewhere the signal is taken for delivered. */
function isStopped(pid: number): boolean {
  if (!existsSync('/proc/self/stat')) return true
  return /\) [Tt] /.test(readFileSync(`/proc/${pid}/stat`, 'utf8'))
}

function externalServer(url: string): RedisEndpoint {
  const { hostname, port } = new URL(url)
  return {
    host: hostname,
    port: Number(port || 6379),
    url,
    cli: (...args) => command(url, args),
    stop: async () => {},
  }
}

async function command(url: string, [name = '', ...args]: readonly (string | number)[]): Promise<string> {
  const client = new Redis(url, {
    protocol: 2,
    lazyConnect: true,
    enableReadyCheck: false,
    disableClientInfo: true,
    retryStrategy: null,
    connectTimeout: 2_000,
    commandTimeout: 10_000,
  })
  client.on('error', () => {})
  try {
    await client.connect()
    return printed(await client.call(String(name), args))
  } finally {
    client.disconnect()
  }
}

/** As `redis-cli` prints an answer: nil as nothing, an array as lines. */
function printed(answer: unknown): string {
  return Array.isArray(answer) ? answer.map(printed).join('\n') : String(answer ?? '')
}
