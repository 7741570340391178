-- Stop a run on request.
--
-- Keys touched: r:<run> (nodes, counters), r:<run>:q, :e, timers, open:*, notices, runs:*; its
--   parent's and children's.
-- Arguments: 6 run, 7 reason, 8 nonce or "".
-- Words: "cancelled" (a repeat too), "already", "unknown".
-- include: room
-- include: reply
local d = open(ARGV[6])
if not d then return {'unknown'} end
make_room()
local word = cancel(d, ARGV[7])
if word == 'already' and ARGV[8] ~= '' and redis.call('HGET', d.key, 'cancel') == ARGV[8] then
  return reply('cancelled')
end
if word == 'cancelled' and ARGV[8] ~= '' then redis.call('HSET', d.key, 'cancel', ARGV[8]) end
return reply(word)
