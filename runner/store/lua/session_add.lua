-- Add a part to a session, once, which a visit in another partition has left for it.
--
-- Keys touched: session:m:<session>, session:s:<session>, moved:<session>.
-- Arguments: 6 session, 7 partition that it comes from, 8 number of the part, 9 number of messages, then those, then
--   for each value of its state: name, value (JSON) or "" if it is deleted.
-- Words: "added", also for a repeat.
-- include: settings
local id, from, number, count = ARGV[6], ARGV[7], tonumber(ARGV[8]), tonumber(ARGV[9])
local moved, values = prefix .. 'moved:' .. id, prefix .. 'session:s:' .. id
if number <= tonumber(redis.call('HGET', moved, from) or 0) then return {'added'} end
redis.call('HSET', moved, from, ARGV[8])
for place = 10, 9 + count do redis.call('RPUSH', prefix .. 'session:m:' .. id, ARGV[place]) end
for place = 10 + count, #ARGV, 2 do
  if ARGV[place + 1] == '' then
    redis.call('HDEL', values, ARGV[place])
  else
    redis.call('HSET', values, ARGV[place], ARGV[place + 1])
  end
end
return {'added'}
