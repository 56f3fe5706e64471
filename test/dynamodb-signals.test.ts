/** Signals that several calls share must end none of them early. */

import assert from 'node:assert/strict'
import { it } from 'node:test'
import { SharedSignals } from '../src/stores/dynamodb/signals.ts'

it('calls that begin in the same tenth of the timeout share a signal, and none is ended before its time', (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] })
  const signals = new SharedSignals(1_000)
  const first = signals.at(0)
  assert.equal(signals.at(99), first)
  const next = signals.at(100)
  assert.notEqual(next, first)
  t.mock.timers.tick(1_099)
  assert.equal(first.aborted, false, 'a call that began at 99 has a millisecond left')
  t.mock.timers.tick(1)
  assert.equal(first.aborted, true)
})

it('the longest timeout that there is ends no call at once', (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] })
  const signal = new SharedSignals(2 ** 31 - 1).at(0)
  t.mock.timers.tick(10)
  assert.equal(signal.aborted, false)
})

it('after a pause of the process a call gets a new signal, not one that is about to be aborted', () => {
  const signals = new SharedSignals(1_000)
  const before = signals.at(0)
  assert.notEqual(signals.at(5_000), before)
})

it('hundreds of calls on one signal make no warning', async (t) => {
  const warnings: Error[] = []
  const note = (warning: Error) => warning.name === 'MaxListenersExceededWarning' && warnings.push(warning)
  process.on('warning', note)
  t.after(() => process.off('warning', note))
  const signal = new SharedSignals(1_000).at(0)
  for (let i = 0; i < 300; i++) signal.addEventListener('abort', () => {})
  await new Promise((resolve) => setImmediate(resolve))
  assert.deepEqual(warnings, [])
})
