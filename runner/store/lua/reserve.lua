-- Reserve the next times at which executions may begin under rates. A claim that is given up leaves its times
-- unused, which doesn't violate the rates.
--
-- Keys touched: rates:<limit>, metrics.
-- Arguments: 6 ... for each rate: limit, ms between two executions.
-- Words: the time of each in ms, 0 for at once.
-- include: settings
local MOST_KEYS, times = 100000, {}
for place = 6, #ARGV, 2 do
  local rates = prefix .. 'rates:' .. ARGV[place]:match('^[^:]*')
  redis.call('ZREMRANGEBYSCORE', rates, '-inf', now)
  local start = tonumber(redis.call('ZSCORE', rates, ARGV[place]) or 0)
  redis.call('ZADD', rates, math.max(now, start) + ARGV[place + 1], ARGV[place])
  if redis.call('ZCARD', rates) > MOST_KEYS then
    redis.call('ZPOPMIN', rates)
    redis.call('HINCRBYFLOAT', prefix .. 'metrics', '["runner_limit_keys_forgotten_total", {}, "sum"]', 1)
  end
  times[#times + 1] = ('%.0f'):format(start)
end
return times
