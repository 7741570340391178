-- Extend leases. It knows one rule, the fence.
--
-- Keys touched: r:<run> (read), timers.
-- Arguments: from 6 for each lease: run, node, visit, fence.
-- Words: for each "ok", "stale", or "cancelled" if the run was cancelled.
-- include: settings
-- include: fence
local words = {}
for place = 6, #ARGV, 4 do
  local run, name = ARGV[place], ARGV[place + 1]
  local line, record = unpack(redis.call('HMGET', prefix .. 'r:' .. run, 'run', 'n:' .. name))
  local word = 'stale'
  if holds(record, ARGV[place + 2], ARGV[place + 3]) then
    redis.call('ZADD', prefix .. 'timers', now + lease, 'node|' .. run .. '|' .. name)
    word = line:find(' cancelled$') and 'cancelled' or 'ok'
  end
  words[#words + 1] = word
end
return words
