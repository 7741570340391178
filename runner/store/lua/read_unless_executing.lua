-- Read a run, unless it executes; then note that a reader waits for it to stop.
--
-- Keys touched: r:<run> (read); r:<run>:s.
-- Arguments: 1 run, 2 ms for which the reader waits, or 0.
-- Words: "read", then the run's fields and values, {} if it doesn't exist; "executing", then the entry of r:<run>:s after
--   which the reader waits.
-- include: waiter
local key, wait = KEYS[1] .. 'r:' .. ARGV[1], tonumber(ARGV[2])
if not (redis.call('HGET', key, 'run') or ''):find('^executing ') then return {'read', redis.call('HGETALL', key)} end
return {'executing', wait > 0 and wait_on(key .. ':s', wait) or ''}
