/** A TCP proxy in front of one Redis server that breaks things when a test says so, and counts what it broke. */

import { once } from 'node:events'
import { connect, createServer, type Server, type Socket } from 'node:net'
import { freePort } from './processes.ts'
import { commandName, FrameReader, isPush } from './resp.ts'

/** What happened so far, for tests that must not pass because the fault did not happen. */
export interface ProxyCounters {
  /** Accepted from clients. */
  connections: number
  /** Connections that `resetAfterApply` reset. */
  resets: number
  /** Requests whose replies were lost by that: one per reset or, with pipelining, more. */
  lostReplies: number
  /** Requests that `blackhole` kept from the server. */
  droppedRequests: number
  delayedReplies: number
}

/** Each mode takes the place of the one before. */
export interface RedisProxy {
  readonly host: string
  readonly port: number
  readonly url: string
  readonly counters: Readonly<ProxyCounters>
  /** Connections open now. */
  readonly openConnections: number
  /** Everything goes through: the mode it starts in. Connections that lost something in a black hole are reset. */
  pass(): void
  /**
   * The next `count` replies to commands whose name matches do not arrive: the server has done the work, the client
   * gets a reset. Whatever else the connection had sent is still carried out, unanswered. Then `pass`.
   * Not for connections that subscribe.
   * @param commands matched against the name in upper case. Default: all but those that set a connection up.
   */
  resetAfterApply(count: number, commands?: RegExp): void
  /** Accepts, reads and never answers; nothing reaches the server. */
  blackhole(): void
  /** Holds every reply back for so long; their order stays. */
  delay(ms: number): void
  /** Resets all connections and refuses new ones. */
  refuse(): Promise<void>
  /** Listens again after `refuse`, on the same port, and lets everything through. */
  reopen(): Promise<void>
  stop(): Promise<void>
}

type Mode =
  | { readonly kind: 'pass' | 'blackhole' }
  | { readonly kind: 'delay'; readonly ms: number }
  | { readonly kind: 'reset'; left: number; readonly commands: RegExp }

const HOST = '127.0.0.1'
const PASS: Mode = { kind: 'pass' }
/** All but what a client sends on its own behalf when it connects. */
const NOT_SET_UP = /^(?!(?:HELLO|AUTH|SELECT|CLIENT|INFO|COMMAND|CLUSTER|READONLY)$)/

/** A proxy on a free port; it does not keep the test process alive. */
export async function startProxy(target: { readonly port: number; readonly host?: string }): Promise<RedisProxy> {
  const proxy = new FaultyProxy(target, await freePort())
  await proxy.reopen()
  return proxy
}

class FaultyProxy implements RedisProxy {
  readonly host = HOST
  readonly port: number
  readonly url: string
  readonly counters: ProxyCounters = {
    connections: 0,
    resets: 0,
    lostReplies: 0,
    droppedRequests: 0,
    delayedReplies: 0,
  }
  mode: Mode = PASS
  readonly #target: { readonly port: number; readonly host?: string }
  readonly #links = new Set<Link>()
  #listener: Server | undefined

  constructor(target: { readonly port: number; readonly host?: string }, port: number) {
    this.#target = target
    this.port = port
    this.url = `redis://${HOST}:${port}`
  }

  get openConnections(): number {
    return this.#links.size
  }

  pass(): void {
    this.mode = PASS
    for (const link of this.#links) if (link.hasLost) link.reset()
  }

  resetAfterApply(count: number, commands: RegExp = NOT_SET_UP): void {
    this.pass()
    this.mode = { kind: 'reset', left: count, commands }
  }

  blackhole(): void {
    this.mode = { kind: 'blackhole' }
  }

  delay(ms: number): void {
    this.pass()
    this.mode = { kind: 'delay', ms }
  }

  async refuse(): Promise<void> {
    const listener = this.#listener
    this.#listener = undefined
    if (!listener) return
    const closed = once(listener, 'close')
    listener.ref()
    listener.close()
    for (const link of this.#links) link.reset()
    await closed
  }

  async reopen(): Promise<void> {
    this.pass()
    if (this.#listener) return
    const listener = createServer((client) => this.#accept(client))
    this.#listener = listener
    await once(listener.listen(this.port, HOST), 'listening')
    listener.unref()
  }

  async stop(): Promise<void> {
    await this.refuse()
    for (const link of this.#links) link.reset()
  }

  #accept(client: Socket): void {
    this.counters.connections++
    const link = new Link(this, client, connect(this.#target.port, this.#target.host ?? HOST))
    this.#links.add(link)
    client.once('close', () => this.#links.delete(link))
  }
}

/** One client's connection and the one made to the server for it. */
class Link {
  /** Did requests or replies disappear, so that what follows would be taken for the answer to something else? */
  hasLost = false
  readonly #proxy: FaultyProxy
  readonly #client: Socket
  readonly #server: Socket
  readonly #requests = new FrameReader()
  readonly #replies = new FrameReader()
  /** Names of the commands that wait for their replies. */
  readonly #inFlight: string[] = []
  readonly #held: { readonly frame: Buffer; readonly at: number }[] = []
  #timer: NodeJS.Timeout | undefined

  constructor(proxy: FaultyProxy, client: Socket, server: Socket) {
    this.#proxy = proxy
    this.#client = client.setNoDelay().unref()
    this.#server = server.setNoDelay().unref()
    client.on('error', () => {})
    server.on('error', () => this.reset())
    client.on('data', (chunk) => this.#fromClient(chunk))
    server.on('data', (chunk) => this.#fromServer(chunk))
    // The server still reads what was sent before.
    client.on('close', () => server.end())
    server.on('end', () => client.end())
    server.on('close', () => client.end())
  }

  /** The client gets a reset; the server carries out what it was sent, then sees the end of the connection. */
  reset(): void {
    clearTimeout(this.#timer)
    this.#held.length = 0
    // A socket that is being shut down cannot be reset: Node would leave its handle open, and then spin at exit.
    if (this.#client.writableEnded) this.#client.destroy()
    else if (!this.#client.destroyed) this.#client.resetAndDestroy()
  }

  #fromClient(chunk: Buffer): void {
    for (const request of this.#requests.push(chunk)) this.#request(request)
  }

  #request(request: Buffer): void {
    if (this.#proxy.mode.kind === 'blackhole') {
      this.hasLost = true
      this.#proxy.counters.droppedRequests++
      return
    }
    this.#inFlight.push(commandName(request))
    this.#server.write(request)
  }

  #fromServer(chunk: Buffer): void {
    for (const reply of this.#replies.push(chunk)) {
      if (this.#client.destroyed) return
      this.#reply(reply)
    }
  }

  #reply(reply: Buffer): void {
    const { mode } = this.#proxy
    const command = isPush(reply) ? undefined : this.#inFlight.shift()
    switch (mode.kind) {
      case 'pass':
        return this.#send(reply, 0)
      case 'delay':
        this.#proxy.counters.delayedReplies++
        return this.#send(reply, mode.ms)
      case 'blackhole':
        this.hasLost = true
        return
      case 'reset':
        if (command !== undefined && mode.commands.test(command)) return this.#resetInsteadOfReply(mode)
        return this.#send(reply, 0)
    }
  }

  #resetInsteadOfReply(mode: Mode & { kind: 'reset' }): void {
    this.#proxy.counters.resets++
    this.#proxy.counters.lostReplies += 1 + this.#inFlight.length
    mode.left--
    if (mode.left <= 0) this.#proxy.pass()
    this.reset()
  }

  #send(frame: Buffer, delayMs: number): void {
    if (delayMs === 0 && this.#held.length === 0) {
      this.#client.write(frame)
      return
    }
    this.#held.push({ frame, at: performance.now() + delayMs })
    if (this.#held.length === 1) this.#release()
  }

  /** Sends what has been held long enough; the first in line holds back the others. */
  #release(): void {
    for (let next = this.#held[0]; next; next = this.#held[0]) {
      const waitMs = next.at - performance.now()
      if (waitMs > 0) {
        this.#timer = setTimeout(() => this.#release(), Math.ceil(waitMs)).unref()
        return
      }
      this.#held.shift()
      this.#client.write(next.frame)
    }
  }
}
