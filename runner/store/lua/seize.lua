-- Give a ready visit to one worker that knows the graph: it says which fields the node needs.
--
-- Keys touched: r:<run> (the node), r:<run>:e, timers; read: r:<run>:i and :d (answers), :f (an item).
-- Arguments: 1 a test's time or "", 2 lease (ms), 3 run, 4 node, 5 visit, 6 attempt, 7 nonce, 8 by how much the
--   fence grows, 9 the graph's fingerprint as the caller knows it, 10 the field of an item in :f or "",
--   11 ... fields of the run's hash that hold the inputs.
-- Words: "claimed", record, fence and all that was read; "shape" and `of` when it is another graph; "other" where
--   the general claim must decide.
local key, name, visit, attempt, nonce = KEYS[1] .. 'r:' .. ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local found = redis.call('HMGET', key, 'n:' .. name, 'run', 'of', 'task', 'given', 'q:' .. name, 'k:' .. name,
  'm:' .. name, 'root', 'created', unpack(ARGV, 11))
if not found[1] then return {'other'} end
local status, number, turn, fence, rest = found[1]:match('^(%a+) (%d+) (%d+) (%d+) (.*)$')
local counters, event, stopping = found[2]:match('^(.* )(%d+) (%S+)$')
if status ~= 'ready' or number ~= visit or turn ~= attempt or stopping ~= '-' then return {'other'} end
local fp, parent = found[3]:match('^(%S+) (%S+)')
if fp ~= ARGV[9] then return {'shape', found[3]} end
local stamp, edges, more = rest:match('^(%d+) (%S+) %S+ (.*)$')
if parent ~= '-' or found[7] or more:find('"handed"', 1, true) or more:find('"since"', 1, true) or more:find('"child"', 1, true) then
  return {'other'}
end
if more:find('"unseen"', 1, true) or more:find('"rings"', 1, true) then
  local fields = cjson.decode(more)
  fields.unseen, fields.rings, fields.granted = nil, nil, nil
  more = next(fields) and cjson.encode(fields) or ''
end
local time = redis.call('TIME')
local now = tonumber(ARGV[1]) or time[1] * 1000 + math.floor(time[2] / 1000)
local record = 'running ' .. visit .. ' ' .. attempt .. ' ' .. fence + ARGV[8] .. ' ' .. stamp .. ' ' .. edges .. ' ' .. nonce .. ' ' .. more
event = event + 1
redis.call('HSET', key, 'n:' .. name, record, 'run', counters .. event .. ' -')
redis.call('XADD', key .. ':e', 'MAXLEN', '~', 10000, event .. '-0', 'e',
  'node.started\n' .. string.format('%.0f', now) .. '\n' .. visit .. '\n' .. name .. '\n' .. attempt)
redis.call('ZADD', KEYS[1] .. 'timers', now + ARGV[2], 'node|' .. ARGV[3] .. '|' .. name)
local said = {'claimed', record, found}
if ARGV[10] ~= '' then said[4] = redis.call('HGET', key .. ':f', ARGV[10]) or false else said[4] = false end
local asked = found[6] and cjson.decode(found[6])
if asked and asked[1] == tonumber(visit) then
  said[5] = redis.call('HMGET', key .. ':i', unpack(asked, 2))
  said[6] = redis.call('HMGET', key .. ':d', unpack(asked, 2))
end
return said
