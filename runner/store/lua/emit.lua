-- Add an event to a run's events, and to its root's. It knows no rule.
--
-- Keys touched: r:<run> and its root's (count their events), r:<run>:e and its root's.
-- Arguments: 6 run, 7 kind, 8 node, 9 visit, 10 data (JSON).
-- Words: "emitted", "unknown"; "packed" if the run must be unpacked first.
-- include: echo
local LONG, LEFT = 1000, 1000

-- Long events push older ones out before events take half of a run's permitted size.
local function thin(key)
  if redis.call('HINCRBY', key, 'chatter', #ARGV[10]) * 2 <= most then return end
  redis.call('LTRIM', key .. ':e', -LEFT, -1)
  redis.call('HSET', key, 'chatter', 0)
end

local key = prefix .. 'r:' .. ARGV[6]
local line, path, of = unpack(redis.call('HMGET', key, 'run', 'path', 'of'))
if not line then return {'unknown'} end
if of:find('@of(parent==)') then return {'packed'} end
local head, number, stopping = line:match('@run(status+started events stopping)')
redis.call('HSET', key, 'run', head .. ' ' .. number + 1 .. ' ' .. stopping)
local event = {kind = ARGV[7], node = ARGV[8], visit = ARGV[9], detail = '', data = ARGV[10]}
write_event(key, number + 1, event, event.node)
local root = path and root_of(key)
if root then echo(root, event) end
if #ARGV[10] > LONG then
  thin(key)
  if root and root.run ~= '' then thin(root.key) end
end
return {'emitted'}
