-- What a node keeps across a pause. Arguments from `first` on, absent when there is nothing to keep:
-- document (JSON), how many stored messages stay, the messages after those (JSON).
-- include: settings
local function keep(key, name, first)
  if not ARGV[first] then return end
  redis.call('HSET', key, 'k:' .. name, 1)
  local list, field = key .. ':m', '#' .. name
  local had = tonumber(redis.call('HGET', list, field) or 0)
  local count = math.min(had, tonumber(ARGV[first + 1]))
  redis.call('HSET', key .. ':s', name, ARGV[first])
  for place = first + 2, #ARGV do
    count = count + 1
    redis.call('HSET', list, count .. '.' .. name, ARGV[place])
  end
  for place = count + 1, had do redis.call('HDEL', list, place .. '.' .. name) end
  redis.call('HSET', list, field, count)
end
