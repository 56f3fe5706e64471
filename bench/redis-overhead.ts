/** Server CPU and Redis CPU per request: bare, written by hand, with the plugin. */

import { Redis } from 'ioredis'
import { startRedis } from '../test/support/redis/servers.ts'
import {
  BESIDE_BY_HAND,
  besideByHand,
  inTurn,
  median,
  type Plan,
  planText,
  printTable,
  type Sample,
  type Variant,
} from './measure.ts'

const bare: Variant = { name: 'bare route', server: 'bare' }
const byHand: Variant = { name: 'by hand, first request', server: 'hand' }
const safe: Variant = { name: 'safe by hand, first request', server: 'safe' }
const first: Variant = { name: 'plugin, first request', server: 'plugin' }
const replay: Variant = { name: 'plugin, replay', server: 'plugin', repeats: true }
const replayed = (variant: Variant, name: string): Variant => ({ ...variant, name, repeats: true })
const variants = [
  bare,
  byHand,
  replayed(byHand, 'by hand, replay'),
  safe,
  replayed(safe, 'safe by hand, replay'),
  first,
  replay,
]

/** DESIGN §10: server CPU as a multiple of the hand-written first request. */
const BUDGETS = new Map([
  [first, 1.15],
  [replay, 1],
])

interface RedisSample extends Sample {
  /** Of the redis-server process, per request. */
  readonly redisCpuUs: number
  /** Inside commands, per request, by name. What a script calls is counted in both. */
  readonly commandUs: ReadonlyMap<string, number>
}

export async function overhead(processes = 3, rounds = 8, requests = 5_000): Promise<void> {
  const redis = await startRedis({})
  const observer = new Redis(redis.url)
  const plan: Plan = { script: 'server-redis.js', args: [redis.url], warmUp: 20_000, processes, rounds, requests }
  const samples = await inTurn(variants, plan, async (take): Promise<RedisSample> => {
    const before = await readingsOf(observer)
    const sample = await take()
    return { ...sample, ...difference(before, await readingsOf(observer), sample.requests) }
  })
  const version = (await observer.info('server')).match(/redis_version:(\S+)/)?.[1]
  console.log(`${planText(plan)}; ratios are medians of per-round ratios; redis-server ${version}`)
  report(samples)
  observer.disconnect()
  await redis.stop()
}

interface Readings {
  readonly cpuUs: number
  readonly commands: ReadonlyMap<string, number>
}

async function readingsOf(redis: Redis): Promise<Readings> {
  const cpu = await redis.info('cpu')
  const stats = await redis.info('commandstats')
  const seconds = (name: string) => Number(new RegExp(`^${name}:([\\d.]+)`, 'm').exec(cpu)?.[1])
  const commands = [...stats.matchAll(/^cmdstat_([^:]+):calls=\d+,usec=(\d+)/gm)]
  return {
    cpuUs: (seconds('used_cpu_user') + seconds('used_cpu_sys')) * 1e6,
    commands: new Map(commands.map(([, name = '', us]) => [name, Number(us)])),
  }
}

function difference(before: Readings, after: Readings, requests: number) {
  const spent = [...after.commands].map(
    ([name, us]) => [name, (us - (before.commands.get(name) ?? 0)) / requests] as const,
  )
  return {
    redisCpuUs: (after.cpuUs - before.cpuUs) / requests,
    commandUs: new Map(spent.filter(([name]) => name !== 'info')),
  }
}

function report(samples: ReadonlyMap<Variant, readonly RedisSample[]>): void {
  const of = (variant: Variant) => samples.get(variant) ?? []
  const rows = [...samples].map(([variant, own]) => [
    ...besideByHand(variant, own, of(bare), of(byHand), BUDGETS.get(variant)),
    median(own.map((s) => s.redisCpuUs)).toFixed(1),
    commandsOf(own),
  ])
  printTable([...BESIDE_BY_HAND, 'Redis CPU µs', 'in commands µs'], rows)
}

function commandsOf(samples: readonly RedisSample[]): string {
  const names = [...new Set(samples.flatMap(({ commandUs }) => [...commandUs.keys()]))]
  const spent = names.map((name) => ({ name, us: median(samples.map((s) => s.commandUs.get(name) ?? 0)) }))
  return spent.flatMap(({ name, us }) => (us < 0.05 ? [] : [`${name} ${us.toFixed(1)}`])).join(', ')
}
