/** Just enough of the Redis protocol (RESP2 and RESP3) to tell where one request or reply ends. */

const LINE_END = '\r\n'

/** Cuts a byte stream into whole values, as they come. */
export class FrameReader {
  #pending: Buffer = Buffer.alloc(0)

  /** The values that are complete with this chunk. */
  push(chunk: Buffer): Buffer[] {
    const bytes = this.#pending.length === 0 ? chunk : Buffer.concat([this.#pending, chunk])
    const frames: Buffer[] = []
    let start = 0
    for (let end = endOfValue(bytes, start); end !== INCOMPLETE; end = endOfValue(bytes, start)) {
      frames.push(bytes.subarray(start, end))
      start = end
    }
    this.#pending = bytes.subarray(start)
    return frames
  }
}

const INCOMPLETE = -1

/** The index after the value that begins at `at`. */
function endOfValue(bytes: Buffer, at: number): number {
  const lineEnd = bytes.indexOf(LINE_END, at)
  if (lineEnd < 0) return INCOMPLETE
  const next = lineEnd + LINE_END.length
  const length = () => Number(bytes.toString('latin1', at + 1, lineEnd))
  switch (String.fromCharCode(bytes[at] as number)) {
    case '$':
    case '=':
    case '!':
      return endOfBlob(bytes, next, length())
    case '*':
    case '~':
    case '>':
      return endOfValues(bytes, next, length())
    case '%':
      return endOfValues(bytes, next, 2 * length())
    case '|': // Attributes come before the value that they belong to.
      return endOfValues(bytes, next, 2 * length() + 1)
    default:
      return next
  }
}

/** A negative length is nil: no bytes follow. */
function endOfBlob(bytes: Buffer, start: number, length: number): number {
  if (length < 0) return start
  const end = start + length + LINE_END.length
  return end <= bytes.length ? end : INCOMPLETE
}

function endOfValues(bytes: Buffer, start: number, count: number): number {
  let end = start
  for (let left = count; left > 0 && end !== INCOMPLETE; left--) end = endOfValue(bytes, end)
  return end
}

/** The command's name in upper case, of a request as clients send it or typed by hand. */
export function commandName(request: Buffer): string {
  const head = request.toString('latin1', 0, 64)
  const [, name = ''] = /^(?:\*\d+\r\n\$\d+\r\n)?([^\s]+)/.exec(head) ?? []
  return name.toUpperCase()
}

/** A RESP3 message that is no reply to anything. */
export function isPush(reply: Buffer): boolean {
  return reply[0] === '>'.charCodeAt(0)
}
