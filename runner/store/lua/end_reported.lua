-- Note that the end of a run was reported: no doorbell rings for it any more, and the run may expire.
--
-- Keys touched: r:<run> and its parts (expiry), timers, g:<fingerprint> (counts its runs), idem:<graph>:<key>,
--   retiring, retired, archive (read), unarchived.
-- Arguments: 6 run, 7 which of its ends.
-- Words: "end_reported" (a repeat too), "stale" when it has ended again or is gone.
-- include: draft
-- include: ended
local d = open(ARGV[6])
if not d or redis.call('HGET', d.key, 'ends') ~= ARGV[7] then return {'stale'} end
redis.call('ZREM', prefix .. 'timers', 'callback|' .. d.id .. '|')
if redis.call('HDEL', d.key, 'unreported') == 1 then end_use(d) end
return {'end_reported'}
