-- Extend leases.
--
-- Keys touched: r:<run> (read), timers.
-- Arguments: from 6 for each lease: run, node, visit, fence.
-- Words: for each "ok", "stale", or "cancelled" when the run was cancelled.
-- include: ownership
local words = {}
for place = 6, #ARGV, 4 do
  local run, name = ARGV[place], ARGV[place + 1]
  local fields = redis.call('HMGET', prefix .. 'r:' .. run, 'run', 'n:' .. name)
  local word = (fields[1] or ''):find(' cancelled$') and 'cancelled' or 'ok'
  if holds(read_node(fields[2]), tonumber(ARGV[place + 2]), tonumber(ARGV[place + 3])) then
    redis.call('ZADD', prefix .. 'timers', now + lease, 'node|' .. run .. '|' .. name)
  else
    word = 'stale'
  end
  words[#words + 1] = word
end
return words
