-- Answers that came before their questions, in one hash: "#" how many, their bytes and the last number;
-- ?<question> the numbers of its answers; !<number> the door that it came through, and its message.
-- include: settings
local EARLY, AT_ONCE = prefix .. 'early', 100

local function early_sums()
  local count, bytes, last = (redis.call('HGET', EARLY, '#') or '0 0 0'):match('^(%d+) (%d+) (%d+)$')
  return tonumber(count), tonumber(bytes), tonumber(last)
end

-- Hand the answers to a question back to their doors, in the order in which they came: all, or only one.
local function hand_early(run, id, only)
  local numbers = redis.call('HGET', EARLY, '?' .. id)
  if not numbers then return end
  local count, bytes, last = early_sums()
  local doors, rest = {}, {}
  local function send(door)
    redis.call('XADD', prefix .. 'early:' .. door, '*', unpack(doors[door]))
    doors[door] = nil
  end
  for number in numbers:gmatch('%d+') do
    if only and number ~= only then
      rest[#rest + 1] = number
    else
      local value = redis.call('HGET', EARLY, '!' .. number)
      local door, message = value:match('^(%S+) (.*)$')
      redis.call('HDEL', EARLY, '!' .. number)
      redis.call('ZREM', prefix .. 'timers', 'early|' .. run .. '|' .. number .. ' ' .. id)
      count, bytes, doors[door] = count - 1, bytes - #value, doors[door] or {}
      doors[door][#doors[door] + 1], doors[door][#doors[door] + 2] = number, message
      if #doors[door] == 2 * AT_ONCE then send(door) end
    end
  end
  for door in pairs(doors) do send(door) end
  if count == 0 then return redis.call('DEL', EARLY) end
  redis.call('HSET', EARLY, '#', table.concat({count, bytes, last}, ' '))
  if #rest == 0 then return redis.call('HDEL', EARLY, '?' .. id) end
  redis.call('HSET', EARLY, '?' .. id, table.concat(rest, ' '))
end
