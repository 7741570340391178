-- Places of limits that are given back, and kept for the first waiting members.
-- include: settings
local HOLDERS, QUEUE = prefix .. 'limit:h:', prefix .. 'limit:q:'

-- The position of a member that waits since a time: places that others have, others ahead of it in the queue, and 1
-- if it has a place.
local function queue_position(key, member, since)
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

-- Remove a key from the list if no member waits for it; some queues are known to be empty.
local function forget_idle(key, empty)
  if empty or redis.call('EXISTS', QUEUE .. key) == 0 then redis.call('ZREM', prefix .. 'limit:waiting', key) end
end

-- The slots of a limit: the operators' setting, or the number in the code if there is no readable setting.
-- If graphs declare it differently, the first declaration holds.
local function slots_of(key, concurrency)
  local setting = redis.call('HGET', prefix .. 'limits', key:match('^[^:]*'))
  if not setting then return concurrency end
  local _, slots = pcall(function()
    setting = cjson.decode(setting)
    if tonumber(setting.concurrency) then return tonumber(setting.concurrency) end
    for _, declared in ipairs(setting.declared or {}) do
      local start = declared[1]
      if key == start or start:sub(-1) == ':' and key:sub(1, #start) == start then return declared[2] end
    end
  end)
  return type(slots) == 'number' and slots > 0 and slots or concurrency
end

-- The score of a place that is kept for a node of another partition, until a sweep drops it. If it lapsed before that,
-- it could be given away twice, since the sweep that drops it doesn't know the number of places.
local KEPT = 9e15

-- Set the timer that checks another partition's node when its lease is over; return the new version of its slot.
local function look_later(key, member, after)
  local claim, run, node = member:match('^@([^|]*)|([^|]*)|(.*)$')
  local timer = 'slot|' .. run .. '|' .. claim .. '|' .. node .. '\n' .. key
  -- Thousandths of a ms tell it from earlier versions. A later time alone would not do: a kept slot is
  -- checked after minutes, and the node that takes it may die at once.
  local before = tonumber(redis.call('ZSCORE', prefix .. 'timers', timer) or 0)
  local nth = math.floor((1 - before % 1) * 1000 + 1.5) % 400  -- never 500: see due.lua
  local version = ('%.3f'):format(now + after - nth / 1000)
  redis.call('ZADD', prefix .. 'timers', version, timer)
  return version
end

-- Remove a member ("<run>|<node>", "" for none) from a limit, and keep places that are then free for the first in
-- the queue, for the length of a lease. These members are added to `offered`, and their timers are due.
local function offer(key, concurrency, member, offered)
  if redis.call('ZREM', QUEUE .. key, member) == 1 then forget_idle(key) end
  if member ~= '' and redis.call('ZREM', HOLDERS .. key, member) == 0 then return end
  redis.call('ZREMRANGEBYSCORE', HOLDERS .. key, '-inf', now)
  local free = slots_of(key, concurrency) - redis.call('ZCARD', HOLDERS .. key)
  if free <= 0 then return end
  local first = redis.call('ZPOPMIN', QUEUE .. key, free)
  forget_idle(key, #first < 2 * free)
  for place = 1, #first, 2 do
    local is_away = first[place]:byte() == 64
    redis.call('ZADD', HOLDERS .. key, is_away and KEPT or now + lease, first[place])
    if is_away then
      look_later(key, first[place], lease)
    else
      redis.call('ZADD', prefix .. 'timers', 'XX', now, 'node|' .. first[place])
    end
    offered[#offered + 1] = first[place]
  end
end
