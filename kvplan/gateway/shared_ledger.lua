-- One ledger for several gateways: weighted reservations, each with a lease. The clock is the Redis server's.
-- KEYS: weights (hash holder -> weight), leases (zset holder -> end), state (hash), gateways (zset id -> last seen)
-- ARGV: operation, lease in ms, capacity, gateway, then pairs of holder and weight
-- Returns {1 done | 0 no room | -1 not open yet, reserved, running gateways}
local weights, leases, state, gateways = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local operation, lease, capacity = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local reserved = tonumber(redis.call('HGET', state, 'reserved') or '0')

-- Gateways report every quarter of a lease. After a silence of half a lease (a restart, a lost memory) nobody knows what
-- still runs. For one lease nothing is admitted and nothing expires, while every running gateway reports what it holds.
local seen = tonumber(redis.call('HGET', state, 'seen') or '-1')
local opens = tonumber(redis.call('HGET', state, 'opens') or '0')
if seen < 0 or now - seen > lease / 2 then
  opens = now + lease
  redis.call('HSET', state, 'opens', opens)
end
redis.call('HSET', state, 'seen', now)
redis.call('ZADD', gateways, now, ARGV[4])
redis.call('ZREMRANGEBYSCORE', gateways, '-inf', now - lease)

local function drop(holder, weight)
  redis.call('HDEL', weights, holder)
  redis.call('ZREM', leases, holder)
  reserved = reserved - weight
end

if now >= opens then
  for _, holder in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', now)) do
    drop(holder, tonumber(redis.call('HGET', weights, holder) or '0'))
  end
end

local result = 1
for index = 5, #ARGV, 2 do
  local holder, weight = ARGV[index], tonumber(ARGV[index + 1])
  local held = tonumber(redis.call('HGET', weights, holder) or '0')
  if operation == 'reserve' and (now < opens or reserved + weight > capacity) then
    result = 0
  elseif operation == 'lower' and weight < 0 then
    drop(holder, held)
  elseif operation == 'lower' then
    if weight < held then
      redis.call('HSET', weights, holder, weight)
      reserved = reserved + weight - held
    end
  else -- reserve with room, or hold: a renewal, whether or not it was known
    redis.call('HSET', weights, holder, weight)
    redis.call('ZADD', leases, now + lease, holder)
    reserved = reserved + weight - held
  end
end

if now < opens then
  result = -1
end
redis.call('HSET', state, 'reserved', reserved)
for index = 1, 4 do
  redis.call('PEXPIRE', KEYS[index], lease * 100)
end
return {result, reserved, redis.call('ZCARD', gateways)}
