/**
 * What Redis has no single command for, as scripts. Each touches one key, KEYS[1], and reads no clock but Redis's own.
 * Each has its version in its name, so that two versions of this package can share a client and a server.
 */

/** Reads the head of a record: version, state, token, fence, leaseMs, ttlMs, fingerprint. */
const HEAD = `
local function head(value)
  return string.match(value, '^([^|\\n]*)|(%a)|([^|\\n]*)|(%d+)|(%d+)|(%d+)|([^\\n]*)\\n')
end
local function remaining(state, lease, ttl)
  if state ~= 'p' then return 0 end
  return math.max(0, tonumber(lease) - (tonumber(ttl) - redis.call('PTTL', KEYS[1])))
end
`

/**
 * Claims a key that SET NX GET did not settle.
 * KEYS[1] record. ARGV token, fingerprint, leaseMs, ttlMs, may an expired lease be taken over (1/0).
 * Returns { 'claimed', fence, 'no' | 'failed' | 'expired' } or { 'exists', leaseRemainingMs, value }
 * or { 'unknown', version }.
 */
const CLAIM = `${HEAD}
local function take(fence, why)
  local line = '1|p|' .. ARGV[1] .. '|' .. fence .. '|' .. ARGV[3] .. '|' .. ARGV[4] .. '|' .. ARGV[2] .. '\\n'
  redis.call('SET', KEYS[1], line, 'PX', ARGV[4])
  return { 'claimed', fence, why }
end
local value = redis.call('GET', KEYS[1])
if not value then return take(1, 'no') end
local version, state, token, fence, lease, ttl, fingerprint = head(value)
if version ~= '1' then return { 'unknown', version or string.sub(value, 1, 16) } end
if token == ARGV[1] and state == 'p' then return { 'claimed', tonumber(fence), 'no' } end
local left = remaining(state, lease, ttl)
if token ~= ARGV[1] and fingerprint == ARGV[2] then
  if state == 'f' then return take(tonumber(fence) + 1, 'failed') end
  if state == 'p' and left == 0 and ARGV[5] == '1' then return take(tonumber(fence) + 1, 'expired') end
end
return { 'exists', left, value }
`

/**
 * Who may write: the bearer of the token, unless the record's fence is higher than his. Then somebody has taken the key
 * over from him, and a copy of his claim that came late has taken it back without anybody's knowing.
 */
const OWNER = `
local function isOwner(token, fence)
  return token == ARGV[1] and tonumber(fence) <= tonumber(ARGV[2])
end
`

/**
 * Ends a claim with a new record.
 * KEYS[1] record. ARGV token, fence, value, ttlMs, states besides pending in which the same token may write it again.
 * Returns 1, or 0: no longer the owner.
 */
const WRITE = `${OWNER}
local state, token, fence = string.match(redis.call('GETRANGE', KEYS[1], 0, 1023), '^1|(%a)|([^|\\n]*)|(%d+)|')
if not isOwner(token, fence) or not (state == 'p' or string.find(ARGV[5], state, 1, true)) then return 0 end
redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4])
return 1
`

/**
 * Starts the lease anew, and raises the fence to the claim's.
 * KEYS[1] record. ARGV token, fence, leaseMs. Returns 1, or 0: no longer the owner.
 */
const RENEW = `${HEAD}${OWNER}
local value = redis.call('GET', KEYS[1])
if not value then return 0 end
local version, state, token, fence, _, ttl, fingerprint = head(value)
if version ~= '1' or state ~= 'p' or not isOwner(token, fence) then return 0 end
local keep = string.format('%.0f', math.max(tonumber(ttl), tonumber(ARGV[3])))
local line = '1|p|' .. token .. '|' .. ARGV[2] .. '|' .. ARGV[3] .. '|' .. keep .. '|' .. fingerprint .. '\\n'
redis.call('SET', KEYS[1], line, 'PX', keep)
return 1
`

/**
 * Frees a key that is pending or failed.
 * KEYS[1] record. ARGV token, fence (0, unknown because the claim's answer never came, is taken for 1).
 * Returns 1, or 0: nothing that may be forgotten was there.
 */
const RELEASE = `${OWNER}
local state, token, fence = string.match(redis.call('GETRANGE', KEYS[1], 0, 1023), '^1|(%a)|([^|\\n]*)|(%d+)|')
if ARGV[2] == '0' then ARGV[2] = '1' end
if not isOwner(token, fence) or (state ~= 'p' and state ~= 'f') then return 0 end
return redis.call('DEL', KEYS[1])
`

/**
 * Undoes a claim under which nothing has run: a fresh key is free again, one that was taken over has failed at the fence
 * that it had before, and is nobody's: whose claim that was is not known any more.
 * KEYS[1] record. ARGV token, fence, ttlMs. Returns 1, or 0: this claim is not there, or not pending.
 */
const GIVE_BACK = `${HEAD}
local value = redis.call('GET', KEYS[1])
if not value then return 0 end
local version, state, token, fence, _, _, fingerprint = head(value)
if version ~= '1' or state ~= 'p' or token ~= ARGV[1] or fence ~= ARGV[2] then return 0 end
if fence == '1' then return redis.call('DEL', KEYS[1]) end
local line = '1|f||' .. string.format('%.0f', tonumber(fence) - 1) .. '|0|0|' .. fingerprint .. '\\n'
redis.call('SET', KEYS[1], line, 'PX', ARGV[3])
return 1
`

/**
 * A record and what is left of its lease.
 * KEYS[1] record. Returns { leaseRemainingMs, value }, or nil.
 */
const READ = `${HEAD}
local value = redis.call('GET', KEYS[1])
if not value then return nil end
local _, state, _, _, lease, ttl = head(value)
return { remaining(state, lease, ttl), value }
`

/** Name of the ioredis command → script. */
export const SCRIPTS = {
  fidemClaim1: CLAIM,
  fidemWrite2: WRITE,
  fidemRenew2: RENEW,
  fidemRelease2: RELEASE,
  fidemGiveBack1: GIVE_BACK,
  fidemRead1: READ,
} as const
