-- Put this partition's part of another partition's session aside, so that it can be moved there.
--
-- Keys touched: session:m:<session>, session:s:<session>, moving:m:<session>, moving:s:<session>,
--   moving:n:<session>.
-- Arguments: 6 session.
-- Words: "nothing", or "taken" and the part's number, its messages, its values (name, value ...). A repeat returns the
--   same part until it is dropped; later ones have higher numbers.
-- include: settings
local id = ARGV[6]
local number, talk, values = prefix .. 'moving:n:' .. id, prefix .. 'moving:m:' .. id, prefix .. 'moving:s:' .. id
if redis.call('EXISTS', talk, values) == 0 then
  local new_talk, new_values = prefix .. 'session:m:' .. id, prefix .. 'session:s:' .. id
  if redis.call('EXISTS', new_talk, new_values) == 0 then return {'nothing'} end
  if redis.call('EXISTS', new_talk) == 1 then redis.call('RENAME', new_talk, talk) end
  if redis.call('EXISTS', new_values) == 1 then redis.call('RENAME', new_values, values) end
  local last = tonumber(redis.call('GET', number) or 0)
  redis.call('SET', number, ('%.0f'):format(math.max(last + 1, time[1] * 1000000 + time[2])))
end
return {'taken', redis.call('GET', number), redis.call('LRANGE', talk, 0, -1), redis.call('HGETALL', values)}
