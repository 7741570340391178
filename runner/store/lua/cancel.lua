-- Stop a run because somebody asked for it.
--
-- Keys touched: r:<run> (nodes, counters), r:<run>:q, :e, :d, timers, open, notices, runs:<status>; its
--   parent's and children's.
-- Arguments: 5 run, 6 reason.
-- Words: "cancelled", "already", "unknown".
-- include: room
-- include: reply
local d = open(ARGV[5])
if not d then return {'unknown'} end
make_room()
return reply(cancel(d, ARGV[6]))
