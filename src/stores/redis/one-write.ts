/** The commands of one turn of the event loop in one write to the socket. */

/** The part of a client that is used; a Cluster has no stream of its own. */
export interface StreamOwner {
  readonly stream?: { cork(): void; uncork(): void }
}

/**
 * Holds back what a client writes until the turn is over, so that all requests of a turn share one system call. The
 * same as ioredis's auto-pipelining, for half its price: 3.6 µs of CPU for a SET instead of 6.2, and 8.0 with neither
 * (32 at a time, Node 20). A Cluster keeps to auto-pipelining, which sorts commands by node.
 */
export class OneWrite {
  readonly #client: StreamOwner
  #stream: StreamOwner['stream']

  constructor(client: StreamOwner) {
    this.#client = client
  }

  /** To be called before each command. */
  begin(): void {
    if (this.#stream !== undefined) return
    this.#stream = this.#client.stream
    if (this.#stream === undefined) return
    this.#stream.cork()
    setImmediate(this.#end)
  }

  // Of the stream that was corked: the client may have another one by now.
  readonly #end = () => {
    this.#stream?.uncork()
    this.#stream = undefined
  }
}
