-- Take the next ended runs that may be packed: each is taken once, so that workers share them. See
-- redis/packed_runs.py. A large run is not taken, because it would hold up other clients.
--
-- Keys touched: packed; read: retired, r:<run>, r:<run>:c, r:<run>:e.
-- Arguments: 6 number of runs to examine, 7 ms since which they must have ended.
-- Words: "packable", the number of examined runs, then for each run its key without prefix, its fields with values, its events.
-- include: make_room
local FIELDS, EVENTS, BYTES, BATCH = 1000, 2000, 262144, 1048576
local retired, done = prefix .. 'retired', prefix .. 'packed'
if retention == 0 then return {'packable', 0} end
local score, member = (redis.call('GET', done) or '-inf '):match('^(%S+) (.*)$')
local rank = redis.call('ZRANK', retired, member)
local from = rank and rank + 1 or redis.call('ZCOUNT', retired, '-inf', '(' .. score)
local entries = redis.call('ZRANGE', retired, from, from + ARGV[6] - 1, 'WITHSCORES')
local words, looked_at, bytes = {'packable', 0}, 0, 0
for place = 1, #entries, 2 do
  if bytes > BATCH or tonumber(entries[place + 1]) > now + retention - ARGV[7] then break end
  looked_at, member, score = looked_at + 1, entries[place], entries[place + 1]
  local name = 'r:' .. member:match('^[^\n]*'):gsub(':', '%%')
  local key = prefix .. name
  local of, size = unpack(redis.call('HMGET', key, 'of', 'size'))
  local count = redis.call('LLEN', key .. ':e')
  if of and of:find('@of(parent=-)') and tonumber(size or 0) <= BYTES and count > 0 and count <= EVENTS
    and redis.call('HLEN', key) <= FIELDS and redis.call('EXISTS', key .. ':c') == 0 then
    words[#words + 1] = {name, redis.call('HGETALL', key), redis.call('LRANGE', key .. ':e', 0, -1)}
    bytes = bytes + tonumber(size or 0)
  end
end
if looked_at > 0 then
  make_room()
  redis.call('SET', done, score .. ' ' .. member)
end
words[2] = looked_at
return words
