-- Do what is due: at most so many timers, each for itself. A timer that fails (its run can't be read) is tried
-- again later and later, and the others are done.
--
-- Keys touched: timers, and for each what its transition touches (r:<run> and its parts, open:*, notices,
--   dead, runs:*, early, early:<door>, queues); failing; retiring and retired (runs that ended), runs:*;
--   archive, unarchived.
-- Arguments: 6 limit, 7 entry of a node that used up its crash budget (JSON), 8 the reason in words.
-- Words: how many timers were handled, then in lines those that failed: member, "|", error.
-- include: due
-- include: reply
-- include: retired
local LONGEST_DELAY, FAILURES = 300000, 5
local limit, failed, some_failed = tonumber(ARGV[6]), {}, redis.call('EXISTS', prefix .. 'failing') == 1
local members = redis.call('ZRANGEBYSCORE', prefix .. 'timers', '-inf', now, 'LIMIT', 0, limit)

-- Do one after another; what an error left undone of its own transition was not written.
local function attempt(member, action)
  local rung = #bells
  local done, problem = pcall(action)
  if done then return true end
  for place = #bells, rung + 1, -1 do bells[place] = nil end
  follow = {}
  problem = tostring(type(problem) == 'table' and problem.err or problem):gsub('%s+', ' ')
  failed[#failed + 1] = member .. '|' .. problem
  return false, problem
end

local function put_back(member, run, key, problem)
  local times = redis.call('HINCRBY', prefix .. 'failing', member, 1)
  redis.call('ZADD', prefix .. 'timers', now + math.min(LONGEST_DELAY, lease * 2 ^ math.min(times, 16)), member)
  if times == FAILURES then
    write_dead_letter(run, key, 0, 'what is due for this run fails: ' .. problem)
  end
end

for _, member in ipairs(members) do
  redis.call('ZREM', prefix .. 'timers', member)  -- first: see room.lua
  local kind, run, key = member:match('^(%a+)|([^|]*)|(.*)$')
  local done, problem = attempt(member, function()
    due(kind, run, key)
    follow_all()
  end)
  if not done then
    put_back(member, run, key, problem)
  elseif some_failed then
    redis.call('HDEL', prefix .. 'failing', member)
  end
end
attempt('retired||', function() expire_listings(limit) end)
return reply(table.concat({#members, unpack(failed)}, '\n'))
