-- A running visit waits for an external task, which is sent next.
--
-- Keys touched: r:<run> (the node, counters), r:<run>:e, timers, runs:*; its parent's r:<run>; queues.
-- Arguments: 6 run, 7 node, 8 visit, 9 fence, 10 the name of the work.
-- Words: "handed"; "ready" when the system has reported already; "cancelled" when the run stops; "stale".
-- include: ownership
-- include: handed
-- include: reply
local HANDED = {waiting = 'handed', ready = 'ready', cancelled = 'cancelled'}
local name, visit, fence, reference = ARGV[7], tonumber(ARGV[8]), tonumber(ARGV[9]), ARGV[10]
local d = open(ARGV[6], name)
if not d then return {'stale'} end
local record, word = node(d, name), 'handed'
if not holds(record, visit, fence) then
  return {refusal(record, visit, fence, record.handed == reference and HANDED or {})}
end
timer(d, 'node', name, false)
local handed = fresh({status = 'waiting', busy = true, crashes = 0})
handed.handed = reference
if stops(d, name) then
  cancel_node(d, name)
  word = 'cancelled'
elseif redis.call('HEXISTS', d.key, 'h:' .. reference) == 1 then
  ring(d, name, handed)
  word = 'ready'
else
  change(d, name, handed)
  -- Until it is noted as sent it may not be: then another worker tells the system again.
  timer(d, 'node', name, now + lease)
end
step(d)
return reply(word)
