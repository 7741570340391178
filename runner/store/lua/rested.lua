-- Tell whether a run is executing; if so, note that a reader waits for it to stop.
--
-- Keys touched: r:<run> (read); r:<run>:s.
-- Arguments: 6 run, 7 ms for which the reader waits, or 0.
-- Words: "no", also if the run doesn't exist; "yes", then the entry of r:<run>:s after which the reader waits.
-- include: waiter
local key, wait = KEYS[1] .. 'r:' .. ARGV[6], tonumber(ARGV[7])
if not (redis.call('HGET', key, 'run') or ''):find('^executing ') then return {'no'} end
return {'yes', wait > 0 and wait_on(key .. ':s', wait) or nil}
