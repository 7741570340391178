-- Do what is due: at most so many timers.
--
-- Keys touched: timers, and for each what its transition touches (r:<run> and its parts, open, notices,
--   dead, runs:<status>, queues); retiring and retired (runs that ended), runs, runs:<status>.
-- Arguments: 5 limit, 6 entry of a node that used up its crash budget (JSON), 7 the reason in words.
-- Words: how many timers were handled.
-- include: due
-- include: reply
-- include: retired
local limit = tonumber(ARGV[5])
local members = redis.call('ZRANGEBYSCORE', prefix .. 'timers', '-inf', now, 'LIMIT', 0, limit)
many('ZREM', prefix .. 'timers', members)
for _, member in ipairs(members) do
  local kind, run, key = member:match('^(%a+)|([^|]*)|(.*)$')
  due(kind, run, key)
  follow_all()
end
forget(limit)
return reply(tostring(#members))
