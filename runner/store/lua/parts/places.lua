-- Places of limits: given back, and kept for the first of those that wait. A limit of a node is (key, tag whose
-- value ends the key or "", concurrency or 0, ms between two executions or 0); see limits.py.
-- include: step
-- include: ring
local HOLDERS, QUEUE = prefix .. 'limit:h:', prefix .. 'limit:q:'

local function limit_key(d, limit)
  if limit[2] == '' then return limit[1] end
  local tags = redis.call('HGET', prefix .. 'r:' .. d.root, 'tags')
  local value = tags and cjson.decode(tags)[limit[2]]
  return limit[1] .. (type(value) == 'string' and value or '')
end

-- The places that a node needs, each with its key.
local function places_of(d, name)
  local places = {}
  for _, limit in ipairs(shape(d, 'n:' .. name).limits or {}) do
    if limit[3] > 0 then places[#places + 1] = {limit_key(d, limit), limit[3]} end
  end
  return places
end

-- Keep the free places for the first in the queue, for the length of a lease, and ring them.
local function pass_on(key, concurrency)
  redis.call('ZREMRANGEBYSCORE', HOLDERS .. key, '-inf', now)
  local free = concurrency - redis.call('ZCARD', HOLDERS .. key)
  if free <= 0 then return end
  local first = redis.call('ZPOPMIN', QUEUE .. key, free)
  for place = 1, #first, 2 do
    local run, name = first[place]:match('^([^|]*)|(.*)$')
    local d = open(run, name)
    if d then
      redis.call('ZADD', HOLDERS .. key, now + lease, first[place])
      ring(d, name, {})
      step(d)
    end
  end
end

local function leave_places(d, name, first)
  local member, places = d.id .. '|' .. name, places_of(d, name)
  for place = first, #places do
    redis.call('ZREM', QUEUE .. places[place][1], member)
    if redis.call('ZREM', HOLDERS .. places[place][1], member) == 1 then pass_on(unpack(places[place])) end
  end
end
