/**
 * Conditions and updates as DynamoDB's expressions. `#name` stands for an attribute of {@link DynamoDBAttributes},
 * `:name` for a value. All instants are the application's: DynamoDB has no clock that an expression could ask.
 */

import type { DynamoDBAttributes } from './attributes.ts'

/** A condition, and the update that is made when it holds. */
export interface Write {
  readonly condition: string
  readonly update: string
}

/**
 * Past its end, whatever DynamoDB has deleted. The TTL attribute counts beside the exact instant, for items that were
 * written by hand: rounded up, it is never earlier.
 */
const EXPIRED = '(#expiresAtMs <= :now OR #expiresAt <= :nowSeconds)'

const NEXT_VERSION = '#version = if_not_exists(#version, :zero) + :one'

const EXPIRY = '#expiresAt = :expiresAt, #expiresAtMs = :expiresAtMs'

/** Its claim found no item or an expired one, and nothing has been written since: its fence is 1, whatever it says. */
const FRESH = '(#previousExpiresAt <= #createdAt)'

/**
 * The record has a higher fence than the writer: somebody has taken the key over from him, and a copy of his claim that
 * came late has taken it back without anybody's knowing.
 */
const OVERTAKEN = `(#fence > :fence AND NOT ${FRESH})`

const ownedIn = (states: string) =>
  `(#claimToken = :token AND #state IN (${states}) AND NOT ${OVERTAKEN} AND NOT ${EXPIRED})`

/**
 * A claim wins when there is no item, or an expired one, or one with the same fingerprint that has failed or whose
 * lease has run out. Its own token never wins again: the failed condition brings the item, which says whose it is, and
 * a claim that is sent twice must not restart its lease.
 *
 * The fence goes on from an expired item's too, since an update cannot tell the two apart. That it has is seen by
 * `previousExpiresAt` (0: there was none), and the owner's next write sets it right.
 *
 * Values: token, fingerprint, leaseExpiresAt, lapsedBefore (a lease that ended before is over; 0: none is), expiresAt,
 * expiresAtMs, now, nowSeconds, and the words and numbers.
 */
export const CLAIM: Write = {
  condition:
    `attribute_not_exists(#pk) OR ${EXPIRED} OR ` +
    '(attribute_not_exists(#format) AND #fingerprint = :fingerprint AND #claimToken <> :token AND ' +
    '(#state = :failed OR (#state = :pending AND #leaseExpiresAt < :lapsedBefore)))',
  update:
    'SET #state = :pending, #fingerprint = :fingerprint, #claimToken = :token, ' +
    '#fence = if_not_exists(#fence, :zero) + :one, #previousExpiresAt = if_not_exists(#expiresAtMs, :zero), ' +
    '#leaseExpiresAt = :leaseExpiresAt, #createdAt = :now, ' +
    `${EXPIRY}, ${NEXT_VERSION} REMOVE #response, #responseEncoding, #format`,
}

/** The same, for a table with the credential index. Value: credentialId. */
export const CLAIM_WITH_CREDENTIAL: Write = {
  condition: CLAIM.condition,
  update: CLAIM.update.replace('SET ', 'SET #credentialId = :credentialId, '),
}

/** Values: token, fence, response, expiresAt, expiresAtMs, now, nowSeconds. */
export const COMPLETE: Write = {
  condition: ownedIn(':pending, :completed'),
  update:
    `SET #state = :completed, #fence = :fence, #response = :response, ${EXPIRY}, ${NEXT_VERSION} ` +
    'REMOVE #leaseExpiresAt, #previousExpiresAt, #responseEncoding',
}

/** The same, for a compressed response. */
export const COMPLETE_DEFLATED: Write = {
  condition: COMPLETE.condition,
  update:
    `SET #state = :completed, #fence = :fence, #response = :response, #responseEncoding = :deflate, ${EXPIRY}, ` +
    `${NEXT_VERSION} REMOVE #leaseExpiresAt, #previousExpiresAt`,
}

/** Values: token, fence, expiresAt, expiresAtMs, now, nowSeconds. */
export const FAIL: Write = {
  condition: ownedIn(':pending, :failed'),
  update: `SET #state = :failed, #fence = :fence, ${EXPIRY}, ${NEXT_VERSION} REMOVE #leaseExpiresAt, #previousExpiresAt`,
}

/**
 * Restarts a lease that ends before the record does, which it nearly always does.
 * Values: token, fence, leaseExpiresAt, keptUntil (what the record must outlive, in ms), now, nowSeconds.
 */
export const RENEW: Write = {
  condition: `${ownedIn(':pending')} AND #expiresAtMs >= :keptUntil`,
  update: `SET #leaseExpiresAt = :leaseExpiresAt, #fence = :fence, ${NEXT_VERSION} REMOVE #previousExpiresAt`,
}

/** Restarts a lease that would outlive the record, and keeps the record for it. Values: also expiresAt, expiresAtMs. */
export const RENEW_AND_KEEP: Write = {
  condition: ownedIn(':pending'),
  update: RENEW.update.replace('SET ', `SET ${EXPIRY}, `),
}

/**
 * Frees a key. The item stays, expired for every clock, until TTL deletes it or the next claim takes it, and holds a
 * receipt in place of the token: a release that was carried out and is sent again finds it and knows that it happened,
 * while the token is gone for good. The TTL attribute says now, because TTL leaves alone what is older than five years.
 *
 * Values: token, fence, receipt (random, unique per release), now, nowSeconds.
 */
export const RELEASE: Write = {
  condition: `${ownedIn(':pending, :failed')} OR #claimToken = :receipt`,
  update:
    `SET #state = :released, #claimToken = :receipt, #expiresAt = :nowSeconds, #expiresAtMs = :zero, ${NEXT_VERSION} ` +
    'REMOVE #fence, #previousExpiresAt, #leaseExpiresAt, #fingerprint, #credentialId',
}

/** Values that an expression may use without being given them. DynamoDB refuses one that is not used. */
const WORDS = {
  ':pending': { S: 'pending' },
  ':completed': { S: 'completed' },
  ':failed': { S: 'failed' },
  ':released': { S: 'released' },
  ':deflate': { S: 'deflate' },
  ':zero': { N: '0' },
  ':one': { N: '1' },
} as const

/** A write made ready for a table: what does not change from call to call. */
export interface PreparedWrite {
  readonly input: {
    readonly ConditionExpression: string
    readonly UpdateExpression: string
    readonly ExpressionAttributeNames: Record<string, string>
  }
  readonly words: Readonly<Record<string, { S: string } | { N: string }>>
}

/** Fills in the names of a table's attributes, and the words. */
export function prepared({ condition, update }: Write, attributes: DynamoDBAttributes): PreparedWrite {
  const text = `${condition} ${update}`
  const names = [...new Set(text.match(/#\w+/g))]
  const used = new Set(text.match(/:\w+/g))
  return {
    input: {
      ConditionExpression: condition,
      UpdateExpression: update,
      ExpressionAttributeNames: Object.fromEntries(
        names.map((name) => [name, attributes[name.slice(1) as keyof DynamoDBAttributes]]),
      ),
    },
    words: Object.fromEntries(Object.entries(WORDS).filter(([word]) => used.has(word))),
  }
}
