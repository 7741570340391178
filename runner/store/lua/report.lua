-- Take what another system says of a node's work.
--
-- Keys touched: r:<run> (the node, the report), r:<run>:e, timers, runs:*; its parent's r:<run>; queues;
--   r:<root> (size).
-- Arguments: 6 run, 7 node, 8 visit, 9 the name of the work, 10 how it ended (JSON).
-- Words: "reported" (a repeat too, of which nothing is kept), "stale", "unknown".
-- include: handed
-- include: size
-- include: reply
local LIVE = {ready = true, running = true, waiting = true, retrying = true}
local name, field = ARGV[7], 'h:' .. ARGV[9]
local d = open(ARGV[6], name)
if not d then return {'unknown'} end
local record = node(d, name)
if record.visit ~= tonumber(ARGV[8]) or record.handed ~= ARGV[9] then return {'stale'} end
if redis.call('HEXISTS', d.key, field) == 1 then return {'reported'} end
if not LIVE[record.status] then return {'stale'} end
redis.call('HSET', d.key, field, ARGV[10])
grow(d.root, #ARGV[10])
if is_out(record) then ring(d, name, {}) end
step(d)
return reply('reported')
