-- Add an event to those of a run.
--
-- Keys touched: r:<run> and its root's (count their events), r:<run>:e and its root's.
-- Arguments: 6 run, 7 kind, 8 node, 9 visit, 10 data (JSON).
-- Words: "emitted", "unknown".
-- include: commit
local LONG, LEFT = 1000, 1000

-- Events that tell much push the older ones out before half of what a run may have lies in its events.
local function thin(key)
  if redis.call('HINCRBY', key, 'chatter', #ARGV[10]) * 2 <= most then return end
  redis.call('LTRIM', key .. ':e', -LEFT, -1)
  redis.call('HSET', key, 'chatter', 0)
end

local d = open(ARGV[6])
if not d then return {'unknown'} end
announce(d, ARGV[7], ARGV[8], ARGV[9], '', ARGV[10])
commit(d)
if #ARGV[10] > LONG then
  local root = prefix .. 'r:' .. d.root
  thin(d.key)
  if root ~= d.key and redis.call('EXISTS', root) == 1 then thin(root) end
end
return {'emitted'}
