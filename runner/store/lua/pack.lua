-- Replace the fields and events of ended runs by their packed form, unless a run has changed since it was read.
--
-- Keys touched: r:<run>, r:<run>:e.
-- Arguments: from 6 for each run: its key without prefix, its number of fields, their names, the SHA-1 of their values and
--   of its events (lines), the number of fields that stay, these with values, the packed text.
-- Words: "packed", then the number of packed runs.
-- include: settings
local place, done = 6, 0

local function take()
  place = place + 1
  return ARGV[place - 1]
end

local function several(count)
  local first = place
  place = place + count
  return {unpack(ARGV, first, place - 1)}
end

while ARGV[place] do
  local key, names = prefix .. take(), several(tonumber(take()))
  local check, head, text = take(), several(2 * take()), take()
  local values = redis.call('HMGET', key, unpack(names))
  for nth = 1, #names do values[nth] = values[nth] or '' end
  for _, event in ipairs(redis.call('LRANGE', key .. ':e', 0, -1)) do values[#values + 1] = event end
  local left = redis.call('PTTL', key)
  if left > 0 and redis.call('HLEN', key) == #names and redis.sha1hex(table.concat(values, '\n')) == check then
    redis.call('DEL', key, key .. ':e')
    many('HSET', key, head)
    redis.call('RPUSH', key .. ':e', text)
    redis.call('PEXPIRE', key, left)
    redis.call('PEXPIRE', key .. ':e', left)
    done = done + 1
  end
end
return {'packed', done}
