-- Withdraw an open question: the node that asked it is notified, and may ask it again.
--
-- Keys touched: r:<run> (the node, counters), questions and decisions, :e, timers, open:*, notices,
--   runs:*; its parent's r:<run>; queues; r:<root> (size).
-- Arguments: 6 run, 7 node, 8 visit, 9 question's id, 10 reason and reask (JSON), 11 "1" to wake the node at
--   once.
-- Words: "withdrawn" (a repeat too), "closed" when it is not open any more, "unknown".
-- include: resolve
-- include: reply
local name, visit, id, reason = ARGV[7], ARGV[8], ARGV[9], ARGV[10]
local d = open(ARGV[6], name)
if not d or redis.call('HEXISTS', d.key, 'i:' .. short_id(id)) == 0 then return {'unknown'} end
local decided = redis.call('HGET', d.key, 'd:' .. short_id(id))
if decided then
  return {decided:match('^withdrawn %d+ %S* (.*)$') == reason and 'withdrawn' or 'closed'}
end
local decision = table.concat({'withdrawn', now, node(d, name).attempt, reason}, ' ')
redis.call('HSET', d.key, 'd:' .. short_id(id), decision)
list_closed(d.key, id)
grow(d.root, #reason)
announce(d, 'interrupt.withdrawn', name, visit, id, reason)
resolve(d, name, visit, {id}, ARGV[11] == '1')
step(d)
return reply('withdrawn')
