/**
 * A client that loads a server without costing it anything.
 *
 * A closed loop over raw sockets: each connection sends its next request when the last one is answered. What a client
 * does between two answers is charged to the server in part (both measured with `perf`, on Linux 6):
 * - A client that sleeps until its socket is ready has to be woken by the server's write: 6 µs for each request.
 * - A client that asks for ready sockets without a pause fights with the server's writes for the kernel's lock on
 *   them: 7 µs for each request, and the more the longer the server thinks, so that every difference seems twice as
 *   large as it is.
 * This one never sleeps and asks no more often than every 100 µs, so that the server always finds requests to serve.
 * A load generator that does more for each request than the server does would leave the server idle instead.
 */

import { once } from 'node:events'
import { connect, type Socket } from 'node:net'

const CONNECTIONS = 32
const ASK_EVERY_MS = 0.1

/** The connections to one server. */
export class Load {
  readonly #sockets: readonly Socket[]

  private constructor(sockets: readonly Socket[]) {
    this.#sockets = sockets
  }

  static async connect(url: string): Promise<Load> {
    const { hostname, port } = new URL(url)
    const sockets = Array.from({ length: CONNECTIONS }, () => connect({ host: hostname, port: Number(port) }))
    await Promise.all(sockets.map((socket) => once(socket, 'connect')))
    for (const socket of sockets) socket.setNoDelay(true).setEncoding('latin1')
    return new Load(sockets)
  }

  /**
   * Sends `count` requests and resolves when all are answered.
   * @param message the bytes of the next request
   * @throws Error with the first answer that is not a 200 in one piece
   */
  async send(count: number, message: () => string): Promise<void> {
    let unsent = count
    let unanswered = count
    stayAwake(() => unanswered > 0, ASK_EVERY_MS)
    await new Promise<void>((resolve, reject) => {
      const sendNext = (socket: Socket) => {
        if (unsent-- > 0) socket.write(message())
      }
      for (const socket of this.#sockets) {
        socket.removeAllListeners('data').on('data', (answer: string) => {
          if (!answer.startsWith('HTTP/1.1 200 ') || !answer.endsWith('}')) reject(new Error(answer))
          if (--unanswered === 0) resolve()
          sendNext(socket)
        })
        sendNext(socket)
      }
    })
  }

  close(): void {
    for (const socket of this.#sockets) socket.destroy()
  }
}

/** Keeps this process from sleeping as long as `isWanted`, busy for `pauseMs` at a time between two looks at its sockets. */
export function stayAwake(isWanted: () => boolean, pauseMs: number): void {
  if (!isWanted()) return
  const until = performance.now() + pauseMs
  while (performance.now() < until);
  setImmediate(stayAwake, isWanted, pauseMs).unref()
}
