-- Note that another system has the work of a node.
--
-- Keys touched: r:<run> (the node), timers.
-- Arguments: 6 run, 7 node, 8 visit, 9 fence, 10 the name of the work, 11 ms within which it must report, or 0.
-- Words: "sent" (a repeat too), "stale".
-- include: handed
-- include: reply
local name, timeout = ARGV[7], tonumber(ARGV[11])
local d = open(ARGV[6], name)
if not d then return {'stale'} end
local record = node(d, name)
local same = record.visit == tonumber(ARGV[8]) and record.fence == tonumber(ARGV[9]) and record.handed == ARGV[10]
if not (same and is_out(record)) then return {'stale'} end
change(d, name, {sent = true})
timer(d, 'node', name, timeout > 0 and now + timeout)
step(d)
return reply('sent')
