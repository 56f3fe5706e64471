/** `npm run demo:traffic`: clients that retry, hang up and reuse keys, against a payments API that runs already. */

import { parseArgs } from 'node:util'
import { runTraffic, type Tally } from './traffic-clients.ts'

const USAGE = `Usage: npm run demo:traffic -- [--url http://127.0.0.1:3000]... [--seconds 30] [--rate 20]

  --url      the API; several of them when they share a store: retries go to the next one
  --seconds  how long new payments are made (1 to 86400)
  --rate     payments per second (1 to 500); each takes one to six requests`

/** On a terminal one line is written over; elsewhere each takes a line of its own, so there are fewer. */
const IS_TERMINAL = process.stderr.isTTY
const PROGRESS_EVERY_MS = IS_TERMINAL ? 200 : 5_000

try {
  const options = optionsOf(process.argv.slice(2))
  await Promise.all(options.urls.map(assertReachable))
  const tally = await runTraffic({ ...options, onProgress: progress() })
  if (IS_TERMINAL) process.stderr.write('\r\x1b[K')
  console.log(summary(tally))
  process.exitCode = tally.doubled === 0 ? 0 : 1
} catch (error) {
  console.error((error as Error).message)
  process.exitCode = 2
}

function optionsOf(args: string[]) {
  try {
    const { values } = parseArgs({
      args,
      options: {
        url: { type: 'string', multiple: true, default: ['http://127.0.0.1:3000'] },
        seconds: { type: 'string', default: '30' },
        rate: { type: 'string', default: '20' },
      },
    })
    return {
      urls: values.url.map((url) => new URL(url).origin),
      seconds: numberOf('seconds', values.seconds, 86_400),
      rate: numberOf('rate', values.rate, 500),
    }
  } catch (error) {
    throw new Error(`${(error as Error).message}\n\n${USAGE}`)
  }
}

function numberOf(name: string, text: string, max: number): number {
  const number = Number(text)
  if (number >= 1 && number <= max) return number
  throw new Error(`--${name} takes a number from 1 to ${max}, got ${JSON.stringify(text)}`)
}

async function assertReachable(url: string): Promise<void> {
  const answer = await fetch(`${url}/healthz`).catch(() => undefined)
  if (!answer?.ok) throw new Error(`There is no payments API at ${url}. Start one in another shell: npm start`)
}

function progress(): (tally: Readonly<Tally>) => void {
  let next = performance.now() + PROGRESS_EVERY_MS
  return ({ orders, sent, replayed, conflicts, errors }) => {
    if (performance.now() < next) return
    next = performance.now() + PROGRESS_EVERY_MS
    const line = `${orders} payments, ${sent} requests, ${replayed} replayed, ${conflicts} conflicts, ${errors} errors`
    process.stderr.write(IS_TERMINAL ? `\r\x1b[K${line}` : `${line}\n`)
  }
}

function summary(tally: Tally): string {
  const rows: [string, number][] = [
    ['payments wanted', tally.orders],
    ['requests sent', tally.sent],
    ['executed', tally.executed],
    ['replayed', tally.replayed],
    ['conflicts (409)', tally.conflicts],
    ['mismatches (422)', tally.mismatches],
    ['aborted by the client', tally.aborted],
    ['failed, then retried', tally.failed],
    ['errors', tally.errors],
    ['double executions', tally.doubled],
  ]
  return rows.map(([name, count]) => `${name.padEnd(22)}${String(count).padStart(8)}`).join('\n')
}
