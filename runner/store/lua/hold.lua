-- Set a visit aside whose graph has changed under it, until its run is migrated.
--
-- Keys touched: r:<run> (the node, counters), r:<run>:e, timers, runs:*; its parent's; queues.
-- Arguments: 6 run, 7 node, 8 visit, 9 fence.
-- Words: "held", "stale".
-- include: ownership
-- include: reply
local name, visit, fence = ARGV[7], tonumber(ARGV[8]), tonumber(ARGV[9])
local d = open(ARGV[6], name)
if not d then return {'stale'} end
local record = node(d, name)
if not holds(record, visit, fence) then
  return {refusal(record, visit, fence, record.held and {waiting = 'held'} or {})}
end
change(d, name, {status = 'waiting', held = true})
timer(d, 'node', name, false)
announce(d, 'node.held', name, visit)
step(d)
return reply('held')
