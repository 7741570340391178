-- Tell whether a run executes; while it does, note that a reader waits until it does not.
--
-- Keys touched: r:<run> (read); r:<run>:s.
-- Arguments: 6 run, 7 ms for which the reader waits, or 0.
-- Words: "no", also where there is no such run; "yes", then the entry of r:<run>:s after which the reader waits.
-- include: waiter
local key, wait = KEYS[1] .. 'r:' .. ARGV[6], tonumber(ARGV[7])
if not (redis.call('HGET', key, 'run') or ''):find('^executing ') then return {'no'} end
return {'yes', wait > 0 and wait_on(key .. ':s', wait) or nil}
