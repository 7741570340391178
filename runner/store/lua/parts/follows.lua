-- The short way of `apply`, for its commonest plan: one node ends, without a child or maximum, and one begins that needs
-- no other, has not run yet and is claimed. It writes what the rest of the script would: see
-- test_the_short_way_writes_what_the_long_one_does. Anything else goes the long way.
-- include: settings
-- include: echo
local run = ARGV[6]
local key, timers = prefix .. 'r:' .. run, prefix .. 'timers'
local step, nonce, priority, queue = ARGV[12]:match('^(%d+) (%S+) ?(%d*) ?(.*)$')
local function running(record)
  local before, fence, middle, rest = record:match('@node(status=ready visit+attempt fence stamp+edges rest)')
  return 'running ' .. before .. ' ' .. fence + step .. ' ' .. middle .. ' ' .. nonce .. ' ' .. rest
end

local ENDS, ENDS_WITH_OUTPUT = '\127\128\128\0\0\1\0\1\0\1\0\1\0\1\0\1\0\0\0\1\0\0', '\127\128\128\0\0\1\0\1\0\1\0\2\0\1\0\1\0\0\0\1\0\0'
local has_output = ARGV[10] == ENDS_WITH_OUTPUT
if (has_output or ARGV[10] == ENDS) and ARGV[17] == '\0\0\0\0\0\1\0\1\0\1\4\0' and ARGV[11] == '' and step then
  local own = redis.call('HMGET', key, 'run', 'size', 'lock', ARGV[13], ARGV[14], ARGV[15])
  local counts, started, event = (own[1] or ''):match('@run(status=executing active+failed started events stopping=-)')
  local size = event and own[2] + ARGV[9]
  if event and (own[3] or '') == '' and (own[4] or '') == ARGV[16] and size <= most and not (own[5] or own[6]) then
    local name, record, at = ARGV[18], running(ARGV[19]), has_output and 27 or 25
    redis.call('ZREM', timers, ARGV[at + 2])  -- first: see parts/make_room.lua
    redis.call('HSET', key, ARGV[15], record, ARGV[23], ARGV[24], ARGV[at], event + 1 .. ' ' .. ARGV[at + 1],
      'run', 'executing ' .. counts .. ' ' .. started + 1 .. ' ' .. event + 2 .. ' -', 'size', size, unpack(ARGV, 25, at - 1))
    redis.call('ZADD', timers, now + lease, 'node|' .. run .. '|' .. name)
    local kind, visit, ended, detail, data = unpack(ARGV, at + 3, at + 7)
    push_event(key, event + 2,
      event_text(kind, visit, ended, data ~= '' and data, detail), event_text('s', 1, name, by_worker(nonce), '1'))
    return {'follows', name, record, tonumber(counts:match('^%d+'))}
  end
end
