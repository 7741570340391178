-- Note that an end of a run was told: nothing rings for it any more, and the run may expire.
--
-- Keys touched: r:<run> and its parts (expiry), timers, g:<fingerprint> (counts its runs), idem:<graph>:<key>,
--   listed:runs, retiring, retired.
-- Arguments: 5 run, 6 which of its ends.
-- Words: "told" (a repeat too), "stale" when it has ended again or is gone.
-- include: draft
-- include: ended
local d = open(ARGV[5])
if not d or redis.call('HGET', d.key, 'ends') ~= ARGV[6] then return {'stale'} end
redis.call('ZREM', prefix .. 'timers', 'callback|' .. d.id .. '|')
if redis.call('HDEL', d.key, 'untold') == 1 then let_go(d) end
return {'told'}
