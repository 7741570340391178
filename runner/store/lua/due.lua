-- Take the due timers. Each is moved by a lease, within which the caller handles it: if the caller dies, another
-- process does it.
--
-- Keys touched: timers; failing, retiring, retired (read).
-- Arguments: 6 the most timers to take.
-- Words: "due", then the time (ms) to which they were moved, "1" if some had failed before, "1" if ended runs must be
--   examined, and the timers.
-- include: make_room
-- Half a millisecond, which no other timer has: so it shows whether a timer is unchanged since it was taken.
local moved = ('%.1f'):format(now + lease + 0.5)
local due = redis.call('ZRANGEBYSCORE', prefix .. 'timers', '-inf', now, 'LIMIT', 0, tonumber(ARGV[6]))
if #due > 0 then make_room() end
for _, member in ipairs(due) do redis.call('ZADD', prefix .. 'timers', moved, member) end
local ended = redis.call('EXISTS', prefix .. 'retiring') == 1 or redis.call('ZCOUNT', prefix .. 'retired', '-inf', now) > 0
return {'due', moved, tostring(redis.call('EXISTS', prefix .. 'failing')), ended and '1' or '0', due}
