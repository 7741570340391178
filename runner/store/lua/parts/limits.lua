-- Judging a claim by the limits of its node.
-- include: places

-- Reserve the time of an execution under all rates; returns how many ms it must wait.
local function reserve(d, limits)
  local start, rates = now, prefix .. 'rates'
  for _, limit in ipairs(limits) do
    if limit[4] > 0 then
      local key = limit_key(d, limit)
      local slot = math.max(now, tonumber(redis.call('ZSCORE', rates, key) or 0))
      redis.call('ZREMRANGEBYSCORE', rates, '-inf', now)
      redis.call('ZADD', rates, slot + limit[4], key)
      start = math.max(start, slot)
    end
  end
  return start - now
end

-- Take a place of every limit, or stand in the queue of the first that has none: then false. Places of
-- earlier limits are kept until the node's doorbell has rung again, those of later ones given back.
local function take(d, name, places, since)
  local member = d.id .. '|' .. name
  for place, limit in ipairs(places) do
    local key, concurrency = limit[1], limit[2]
    local holders, queue = HOLDERS .. key, QUEUE .. key
    local has_place = tonumber(redis.call('ZSCORE', holders, member) or 0) > now
    local taken = redis.call('ZCOUNT', holders, '(' .. now, 'inf') - (has_place and 1 or 0)
    if not has_place then redis.call('ZADD', queue, 'NX', since, member) end
    if not has_place and taken + redis.call('ZRANK', queue, member) >= concurrency then
      redis.call('ZREM', holders, member)
      d.follow[#d.follow + 1] = {passes = key, concurrency = concurrency}
      d.follow[#d.follow + 1] = {leaves = name, of = d, first = place + 1}
      return false
    end
    redis.call('ZREM', queue, member)
    redis.call('ZADD', holders, place < #places and now + 300000 + lease or 'inf', member)
  end
  for _, limit in ipairs(places) do redis.call('ZADD', HOLDERS .. limit[1], 'inf', member) end
  return true
end
