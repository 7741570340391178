-- Make the doorbells of ready nodes that a freeze or a limit has delayed due at once, some timers at each call.
--
-- Keys touched: timers; r:<run> (read).
-- Arguments: 6 place of the first timer to examine, 7 how many.
-- Words: "woken", then the number of timers found.
-- include: settings
-- Timers that are set to now come before this place, so later timers keep their places.
local first, count = tonumber(ARGV[6]), tonumber(ARGV[7])
local members = redis.call('ZRANGE', prefix .. 'timers', first, first + count - 1)
for _, member in ipairs(members) do
  local run, node = member:match('^node|([^|]*)|(.*)$')
  local record = run and redis.call('HGET', prefix .. 'r:' .. run, 'n:' .. node)
  if record and record:find('^ready ') then redis.call('ZADD', prefix .. 'timers', 'LT', now, member) end
end
return {'woken', #members}
