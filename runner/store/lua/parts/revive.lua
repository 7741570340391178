-- A run that had ended goes on: its keys stay, and its shape is used again.
-- include: ended
-- include: size

-- Keep the keys of a run and of all its children.
local function stay(run)
  local key = prefix .. 'r:' .. run
  for _, suffix in ipairs(KEYS_OF_RUN) do redis.call('PERSIST', key .. suffix) end
  local idem = redis.call('HGET', key, 'idem')
  if idem then redis.call('PERSIST', idem) end
  redis.call('ZREM', prefix .. 'retired', retired(run))
  for _, child in ipairs(redis.call('LRANGE', key .. ':c', 0, -1)) do stay(child) end
end

local function revive(d)
  stay(d.id)
  redis.call('HDEL', d.key, 'ended')
  timer(d, 'callback', '', false)
  -- A run whose end was not reported yet has not left its shape.
  if redis.call('HDEL', d.key, 'unreported') == 0 then redis.call('HINCRBY', d.shape_key, 'runs', 1) end
  redis.call('PERSIST', d.shape_key)
end

-- Take away the records of a run, visits that no longer count, and what nodes kept of them.
local function erase(d, undone, forgets)
  local old = {}
  for _, field in ipairs(redis.call('HKEYS', d.key)) do
    if field:find('^[nl]:') or field:find('^a%-?%d+:') then old[#old + 1] = field end
  end
  many('HDEL', d.key, old)
  for _, item in ipairs(undone) do
    local entry = redis.call('HGET', d.key, 'x:' .. item[1]) or '0 '
    redis.call('HSET', d.key, 'x:' .. item[1], '0 ' .. item[2])
    local bytes = redis.call('HSTRLEN', d.key, 'o:' .. item[1])
    -- An output that is not stored is `null`: see parts/result.lua.
    grow(d.root, -((bytes == 0 and not entry:find('^0 ')) and 4 or bytes))
    redis.call('HDEL', d.key, 'o:' .. item[1])
  end
  for _, item in ipairs(forgets) do
    local list, name = d.key .. ':m', item[1]
    for place = 1, tonumber(redis.call('HGET', list, '#' .. name) or 0) do
      grow(d.root, -MESSAGE_BYTES - redis.call('HSTRLEN', list, place .. '.' .. name))
      redis.call('HDEL', list, place .. '.' .. name)
    end
    grow(d.root, -document_bytes(d.key, name))
    redis.call('HDEL', list, '#' .. name)
    redis.call('HDEL', d.key, 'k:' .. name)
  end
end
