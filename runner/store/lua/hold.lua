-- Set a visit aside whose graph has changed under it, until its run is migrated.
--
-- Keys touched: r:<run> (the node, counters), r:<run>:e, timers, runs:<status>; its parent's; queues.
-- Arguments: 5 run, 6 node, 7 visit, 8 fence.
-- Words: "held", "stale".
-- include: held
-- include: reply
local name, visit, fence = ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])
local d = open(ARGV[5], name)
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
