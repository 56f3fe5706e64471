/** Names of an item's attributes. */

/** What an item holds, and what each attribute is called in the table. */
export interface DynamoDBAttributes {
  /** Partition key, string: the scoped key. The table has no sort key. */
  readonly pk: string
  /** String: `pending`, `completed`, `failed` or `released`; the last is what a release leaves for TTL to delete. */
  readonly state: string
  /** String: digest of the request. */
  readonly fingerprint: string
  /** String: token of the claim that wrote last. */
  readonly claimToken: string
  /** Number: grows with each takeover. */
  readonly fence: string
  /**
   * Number: end, in ms since the epoch, of the record that was there before the claim. Not after `createdAt`: it had
   * expired, and the fence is 1 whatever `fence` says. Gone with the owner's first write, which sets that right.
   */
  readonly previousExpiresAt: string
  /** Number: end of a pending claim's lease, in ms since the epoch. */
  readonly leaseExpiresAt: string
  /** Number: the TTL attribute, in whole seconds since the epoch, rounded up. */
  readonly expiresAt: string
  /** Number: the same instant in ms, by which expiry is judged. */
  readonly expiresAtMs: string
  /** Number: when the key was last claimed, in ms since the epoch. */
  readonly createdAt: string
  /** Number: grows with every write. */
  readonly version: string
  /** String: the credential as it stands in the scoped key; only with `credentialIndex`. */
  readonly credentialId: string
  /** String or binary: the recorded response, text as text and anything else, or what is compressed, as bytes. */
  readonly response: string
  /** String: `deflate` when the response is compressed (zlib, RFC 1950); otherwise absent. */
  readonly responseEncoding: string
  /** Absent in the one format there is so far. An item that has it was written by a later version, and is left alone. */
  readonly format: string
}

/** Names of the attributes unless the option `attributes` says otherwise. */
export const DEFAULT_ATTRIBUTES: DynamoDBAttributes = {
  pk: 'pk',
  state: 'state',
  fingerprint: 'fingerprint',
  claimToken: 'claim_token',
  fence: 'fence',
  previousExpiresAt: 'previous_expires_at',
  leaseExpiresAt: 'lease_expires_at',
  expiresAt: 'expires_at',
  expiresAtMs: 'expires_at_ms',
  createdAt: 'created_at',
  version: 'version',
  credentialId: 'credential_id',
  response: 'response',
  responseEncoding: 'response_encoding',
  format: 'format',
}
