-- Note that another system has the work of a node.
--
-- Keys touched: r:<run> (the node), timers.
-- Arguments: 5 run, 6 node, 7 visit, 8 fence, 9 the name of the work, 10 ms within which it must report, or 0.
-- Words: "sent" (a repeat too), "stale".
-- include: handed
-- include: reply
local name, timeout = ARGV[6], tonumber(ARGV[10])
local d = open(ARGV[5], name)
if not d then return {'stale'} end
local record = node(d, name)
local same = record.visit == tonumber(ARGV[7]) and record.fence == tonumber(ARGV[8]) and record.handed == ARGV[9]
if not (same and is_out(record)) then return {'stale'} end
change(d, name, {sent = true})
timer(d, 'node', name, timeout > 0 and now + timeout)
step(d)
return reply('sent')
