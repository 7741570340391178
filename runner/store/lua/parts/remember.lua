-- What a visit adds to a session: its node's messages after the first few, and values of its state.
-- Arguments from `first` on: session ("": none), how many messages came before, how many values, then for
-- each: name, value (JSON) or "" when it is deleted. Returns the place of the last one.
-- include: settings
local function remember_until(first) return first + 2 + 2 * tonumber(ARGV[first + 2]) end

local function remember(key, name, first)
  if ARGV[first] == '' then return end
  local list, talk, values = key .. ':m', prefix .. 'session:m:' .. ARGV[first], prefix .. 'session:s:' .. ARGV[first]
  local count = tonumber(redis.call('HGET', list, '#' .. name) or 0)
  for place = tonumber(ARGV[first + 1]) + 1, count do
    redis.call('RPUSH', talk, redis.call('HGET', list, place .. '.' .. name))
  end
  for place = first + 3, remember_until(first), 2 do
    if ARGV[place + 1] == '' then
      redis.call('HDEL', values, ARGV[place])
    else
      redis.call('HSET', values, ARGV[place], ARGV[place + 1])
    end
  end
end
