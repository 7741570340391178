-- Ring again for a running visit whose worker shuts down: no lease has to run out.
--
-- Keys touched: r:<run> (the node, counters), r:<run>:e, timers, runs:*; its parent's r:<run>; queues;
--   a place of a limit and who gets it.
-- Arguments: 6 run, 7 node, 8 visit, 9 fence.
-- Words: "left", "cancelled" when the run stops, "stale".
-- include: ownership
-- include: reply
local LEFT = {ready = 'left', cancelled = 'cancelled'}
local name, visit, fence = ARGV[7], tonumber(ARGV[8]), tonumber(ARGV[9])
local d = open(ARGV[6], name)
if not d then return {'stale'} end
local record, word = node(d, name), 'left'
if not holds(record, visit, fence) then return {refusal(record, visit, fence, LEFT)} end
announce(d, 'node.left', name, visit, record.attempt)
if stops(d, name) then
  cancel_node(d, name)
  word = 'cancelled'
else
  ring(d, name, {})
end
step(d)
return reply(word)
