-- A run with `on_end` that ends: workers are rung for its node @end until one has reported it.
-- include: commit
-- include: ring
local LONGEST_WAIT = 300000

local function ring_end(d, number, again)
  local node_shape = shape(d, 'n:' .. shape(d, 'meta').entries[1])
  d.bells[#d.bells + 1] = {d.id, '@end', number, 1, node_shape.queue, node_shape.priority, d.run.graph}
  timer(d, 'callback', '', again)
end

-- Ring at the end itself: the run counts its ends, so that none is taken for another.
local function note_end(d)
  if redis.call('HEXISTS', d.key, 'on_end') == 0 then return end
  redis.call('HSET', d.key, 'unreported', 1)
  ring_end(d, redis.call('HINCRBY', d.key, 'ends', 1), ring_again())
end

-- Ring again, since no worker has reported the end.
local function ring_end_again(d)
  local fields = redis.call('HMGET', d.key, 'unreported', 'ends')
  if not fields[1] then return end
  redis.call('HINCRBY', d.key, 'unreported', 1)
  ring_end(d, tonumber(fields[2]), now + math.min(LONGEST_WAIT, lease * 2 ^ math.min(tonumber(fields[1]), 16)))
  commit(d)
end
