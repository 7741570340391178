-- Places of limits that are given back, and kept for the first of those that wait.
-- include: settings
local HOLDERS, QUEUE = prefix .. 'limit:h:', prefix .. 'limit:q:'

-- Where a member is that waits since a time: places that others have, others ahead of it in the queue, and 1
-- if it has a place.
local function turn(key, member, since)
  local mine = tonumber(redis.call('ZSCORE', HOLDERS .. key, member) or 0) > now and 1 or 0
  local taken = redis.call('ZCOUNT', HOLDERS .. key, '(' .. now, 'inf') - mine
  local ahead = redis.call('ZRANK', QUEUE .. key, member)
  if not ahead then
    ahead = redis.call('ZCOUNT', QUEUE .. key, '-inf', '(' .. since)
    for _, other in ipairs(redis.call('ZRANGEBYSCORE', QUEUE .. key, since, since)) do
      if other < member then ahead = ahead + 1 end
    end
  end
  return taken, ahead, mine
end

-- Take a member ("<run>|<node>", "" for none) out of a limit, and where a place is free then keep it for the first in
-- the queue, for the length of a lease. Those are added to `offered`, and their timers are due.
local function offer(key, concurrency, member, offered)
  redis.call('ZREM', QUEUE .. key, member)
  if member ~= '' and redis.call('ZREM', HOLDERS .. key, member) == 0 then return end
  redis.call('ZREMRANGEBYSCORE', HOLDERS .. key, '-inf', now)
  local free = concurrency - redis.call('ZCARD', HOLDERS .. key)
  if free <= 0 then return end
  local first = redis.call('ZPOPMIN', QUEUE .. key, free)
  for place = 1, #first, 2 do
    redis.call('ZADD', HOLDERS .. key, now + lease, first[place])
    redis.call('ZADD', prefix .. 'timers', 'XX', now, 'node|' .. first[place])
    offered[#offered + 1] = first[place]
  end
end
