-- Reserve the next times at which executions may begin under rates. A claim that is given up leaves its times
-- unused: the rates are kept all the same.
--
-- Keys touched: rates.
-- Arguments: 6 ... for each rate: limit, ms between two executions.
-- Words: the time of each in ms, 0 for at once.
-- include: settings
local rates, times = prefix .. 'rates', {}
redis.call('ZREMRANGEBYSCORE', rates, '-inf', now)
for place = 6, #ARGV, 2 do
  local start = tonumber(redis.call('ZSCORE', rates, ARGV[place]) or 0)
  redis.call('ZADD', rates, math.max(now, start) + ARGV[place + 1], ARGV[place])
  times[#times + 1] = ('%.0f'):format(start)
end
return times
