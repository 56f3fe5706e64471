/**
 * What the plugin costs on Redis, on a redis-server that is started for the run.
 *
 * `npm run bench:redis`, or `npm run bench:redis -- overhead <processes> <rounds> <requests>`: CPU beside hand-written floors.
 * `npm run bench:redis -- keys`: claims among 1,000 and among 1,000,000 keys.
 * `npm run bench:redis -- memory`: bytes of Redis memory per key.
 */

const [mode = 'overhead', ...args] = process.argv.slice(2)
const numbers = args.map(Number)

switch (mode) {
  case 'overhead':
    await (await import('./redis-overhead.ts')).overhead(...numbers)
    break
  case 'keys':
    await (await import('./redis-keys.ts')).keys(...numbers)
    break
  case 'memory':
    await (await import('./redis-memory.ts')).memory()
    break
  default:
    console.error(`bench:redis takes overhead, keys or memory, got ${mode}`)
    process.exitCode = 1
}
