/** Requests written to a real socket byte for byte, for what HTTP clients will not send or hide when they receive. */

import { connect } from 'node:net'

export interface RawResponse {
  readonly statusCode: number
  /** Header lines as received: names in their own case, repeated lines repeated. */
  readonly headers: readonly (readonly [name: string, value: string])[]
  /** Everything after the header section, as it came (chunked framing included). */
  readonly body: Buffer
}

/** Sends header lines and a body over a new connection that closes after the response. */
export async function rawRequest(
  baseUrl: string,
  startLine: string,
  headerLines: readonly string[],
  body: string | Buffer = '',
): Promise<RawResponse> {
  const { hostname, port } = new URL(baseUrl)
  const socket = connect(Number(port), hostname)
  const length = Buffer.byteLength(body)
  const head = [`${startLine} HTTP/1.1`, 'Host: test', 'Connection: close', `Content-Length: ${length}`, ...headerLines]
  // latin1, because that is how header bytes above 0x7f travel.
  socket.write(Buffer.concat([Buffer.from(`${head.join('\r\n')}\r\n\r\n`, 'latin1'), Buffer.from(body as string)]))
  const chunks: Buffer[] = []
  for await (const chunk of socket) chunks.push(chunk as Buffer)
  return parse(Buffer.concat(chunks))
}

function parse(bytes: Buffer): RawResponse {
  const headEnd = bytes.indexOf('\r\n\r\n')
  const [statusLine = '', ...lines] = bytes.toString('latin1', 0, headEnd).split('\r\n')
  const headers = lines.map((line) => {
    const colon = line.indexOf(':')
    return [line.slice(0, colon), line.slice(colon + 1).trim()] as const
  })
  return { statusCode: Number(statusLine.split(' ')[1]), headers, body: bytes.subarray(headEnd + 4) }
}
