-- What a node keeps across a pause. Arguments from `first` on, absent when there is nothing to keep:
-- document (JSON), how many stored messages stay, the messages after those (JSON).
-- include: size

-- How many bytes more a node keeps with it, and how many messages it had.
local function kept_bytes(key, name, first)
  if not ARGV[first] then return 0, 0 end
  local list, bytes = key .. ':m', #ARGV[first] - document_bytes(key, name)
  local had = tonumber(redis.call('HGET', list, '#' .. name) or 0)
  for place = first + 2, #ARGV do bytes = bytes + MESSAGE_BYTES + #ARGV[place] end
  for place = tonumber(ARGV[first + 1]) + 1, had do
    bytes = bytes - MESSAGE_BYTES - redis.call('HSTRLEN', list, place .. '.' .. name)
  end
  return bytes, had
end

local function keep(key, name, first, had)
  if not ARGV[first] then return end
  local list, field = key .. ':m', '#' .. name
  local count = math.min(had, tonumber(ARGV[first + 1]))
  redis.call('HSET', key, 'k:' .. name, ARGV[first])
  for place = first + 2, #ARGV do
    count = count + 1
    redis.call('HSET', list, count .. '.' .. name, ARGV[place])
  end
  for place = count + 1, had do redis.call('HDEL', list, place .. '.' .. name) end
  -- Most nodes keep no messages: no key is made to say so.
  if count + had > 0 then redis.call('HSET', list, field, count) end
end
