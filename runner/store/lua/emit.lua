-- Add an event to a run's stream.
--
-- Keys touched: r:<run> (counts its events), r:<run>:e.
-- Arguments: 5 run, 6 kind, 7 node, 8 visit, 9 data (JSON).
-- Words: "emitted", "unknown".
-- include: commit
local d = open(ARGV[5])
if not d then return {'unknown'} end
announce(d, ARGV[6], ARGV[7], ARGV[8], '', ARGV[9])
commit(d)
return {'emitted'}
