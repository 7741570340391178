-- The settings that every writing script takes first, and the time.
--
-- Arguments: 1 the time in ms of a test's clock ("" for the server's time), 2 lease in ms,
--   3 "1" to ring doorbells from here, 4 retention in ms (0: for ever), 5 the most bytes of a run,
--   then the script's own from 6.
-- `prefix` names the partition; every key is built from it, so all share its slot (see redis/keys.py).
local prefix = KEYS[1]

local lease, push, retention, most = tonumber(ARGV[2]), ARGV[3] == '1', tonumber(ARGV[4]), tonumber(ARGV[5])
local time = redis.call('TIME')
local now = tonumber(ARGV[1]) or time[1] * 1000 + math.floor(time[2] / 1000)

-- Call a command with any number of arguments: Lua's stack takes a few thousand at once.
local function many(command, key, args, from, to)
  to = to or #args
  for first = from or 1, to, 1000 do
    redis.call(command, key, unpack(args, first, math.min(first + 999, to)))
  end
end
