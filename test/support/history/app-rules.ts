/** Cheap rules about what handlers did and what clients were told. */

import { type Answer, type Effect, FAILURE, type History, type Operation } from './history.ts'
import { completions, type Rule, sights } from './rules.ts'
import { type Won, wonClaims, writes } from './times.ts'

type Told = Readonly<Record<string, (call: Operation, history: History) => boolean>>

/** What a store must have said for a client to be told so, by code. */
const SAID: Told = {
  FST_IDEMPOTENCY_IN_PROGRESS: (call, history) => seen(call, history)?.state === 'pending',
  FST_IDEMPOTENCY_KEY_REUSED: (call, history) => {
    const record = seen(call, history)
    return record !== undefined && call.op === 'claim' && record.fingerprint !== call.fingerprint
  },
}

/** Of handlers, of the plugin, or none. */
const EXPECTED: ReadonlySet<number> = new Set([0, 200, 409, 422, 429, 503])

export const APP_RULES: Readonly<Record<string, Rule>> = {
  'an effect without a claim': (history) => {
    const claims = wonClaims(history)
    const orphan = history.effects.find((effect) => !claims.some((claim) => isOf(effect, claim)))
    return orphan && [orphan]
  },

  'two effects of one claim': (history) => {
    for (const effect of history.effects) {
      const claims = wonClaims(history).filter((claim) => isOf(effect, claim))
      const effects = history.effects.filter(({ app, fence }) => app === effect.app && fence === effect.fence)
      const all = wonClaims(history).filter(({ app, out }) => app === effect.app && out.claim.fence === effect.fence)
      if (effects.length > all.length) return [...claims, ...effects]
    }
    return undefined
  },

  'a handler was started after its lease': (history) => {
    const claims = wonClaims(history)
    const late = history.effects.find((effect) => {
      const own = claims.filter((claim) => isOf(effect, claim))
      return own.length > 0 && own.every(({ t0, leaseMs }) => effect.at > t0 + leaseMs)
    })
    return late && [...claims.filter((claim) => isOf(late, claim)), late]
  },

  'a success was taken back': (history) => {
    for (const { isReplay, body } of successes(history)) {
      const effect = history.effects.find(({ id }) => id === idOf(body))
      const [claim, ...others] = wonClaims(history).filter((won) => effect && !isReplay && isOf(effect, won))
      if (claim === undefined || others.length > 0) continue
      const undone = writes(history, 'fail', 'release').find(({ token }) => token === claim.token)
      if (undone !== undefined) return [claim, undone]
    }
    return undefined
  },

  'an answer of an effect that did not happen, or of another request': (history) => {
    const lie = successes(history).find((answer) => {
      const { effect: id, amount } = JSON.parse(answer.body) as { effect: number; amount: number }
      const effect = history.effects.find((other) => other.id === id && other.at <= answer.t1)
      return effect === undefined || effect.amount !== answer.amount || amount !== answer.amount
    })
    return lie && [lie]
  },

  'a replay that is not the completed response': (history) => {
    const recorded = history.operations.filter((call) => call.op === 'complete')
    const bodies = new Set(recorded.map((call) => String('response' in call ? call.response?.body : undefined)))
    const wrong = successes(history).find(({ isReplay, body }) => isReplay && !bodies.has(body))
    return wrong && [...recorded, wrong]
  },

  'two different replays': (history) => {
    const [first, ...others] = successes(history).filter(({ isReplay }) => isReplay)
    const other = others.find(({ body }) => body !== first?.body)
    return first && other && [...completions(history), first, other]
  },

  'an answer that nobody meant to give': (history) => {
    const odd = history.answers.find(({ status, body }) => {
      return status === 500 ? !body.includes(FAILURE) : !EXPECTED.has(status)
    })
    return odd && [odd]
  },

  'a refusal that the store did not give reason for': (history) => {
    const wrong = history.answers.find((answer) => {
      const mustHaveSaid = SAID[codeOf(answer)]
      if (mustHaveSaid === undefined) return false
      const meanwhile = history.operations.filter((call) => isDuring(call, answer))
      return !meanwhile.some((call) => mustHaveSaid(call, history))
    })
    return wrong && [wrong]
  },
}

function seen(call: Operation, history: History) {
  return sights(history).find((sight) => sight.call === call)?.record
}

function isOf(effect: Effect, { app, t1, out }: Won): boolean {
  return app === effect.app && out.claim.fence === effect.fence && t1 <= effect.at
}

function isDuring(call: Operation, { app, t0, t1 }: Answer): boolean {
  return call.app === app && call.op === 'claim' && call.t0 >= t0 && call.t1 <= t1
}

function successes({ answers }: History): Answer[] {
  return answers.filter(({ status }) => status >= 200 && status < 300)
}

function idOf(body: string): number {
  return (JSON.parse(body) as { effect: number }).effect
}

function codeOf({ status, body }: Answer): string {
  return status === 409 || status === 422 ? (JSON.parse(body) as { code: string }).code : ''
}
