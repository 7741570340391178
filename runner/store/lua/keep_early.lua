-- Keep an answer that came before its question, until it is asked or a time has passed.
--
-- Keys touched: early, timers; r:<run> (read).
-- Arguments: 6 run, 7 question's id, 8 the door that it came through, 9 its message (JSON), 10 ms,
--   11 how many are kept at most, 12 how many bytes.
-- Words: "kept"; "asked" when there is such a question by now; "crowded".
-- include: early
local run, id, value = ARGV[6], ARGV[7], ARGV[8] .. ' ' .. ARGV[9]
if redis.call('HEXISTS', prefix .. 'r:' .. run, 'i:' .. short_id(id)) == 1 then return {'asked'} end
local count, bytes, last = early_sums()
if count >= tonumber(ARGV[11]) or bytes + #value > tonumber(ARGV[12]) then return {'crowded'} end
local number, others = last + 1, redis.call('HGET', EARLY, '?' .. id)
redis.call('HSET', EARLY, '#', table.concat({count + 1, bytes + #value, number}, ' '),
  '?' .. id, (others and others .. ' ' or '') .. number, '!' .. number, value)
redis.call('ZADD', prefix .. 'timers', now + tonumber(ARGV[10]), 'early|' .. run .. '|' .. number .. ' ' .. id)
return {'kept'}
