-- Give a ready visit to one worker that knows the graph: it says which fields the node needs.
--
-- `store/redis/plans.py` puts the constant LEASE (ms) in front of this.
-- Keys touched: r:<run> (the node), r:<run>:e, timers; read: r:<run>:i and :d (answers), :f (an item), :s
--   and :m (what the node kept).
-- Arguments: 1 a test's time or "", 2 run, 3 node, 4 visit, 5 attempt, 6 nonce, 7 by how much the fence grows,
--   8 the graph's fingerprint as the caller knows it, 9 the field of an item in :f or "", 10 ... fields of the
--   run's hash that the node needs.
-- Words: the record and those fields, then where there is any: the item, q:<node>, questions, decisions, and what
--   the node keeps (document, a task of its own, messages). Or a word: "shape" and `of` when it is another graph; "other" where the general claim must decide.
local key, name, visit = KEYS[1] .. 'r:' .. ARGV[2], ARGV[3], ARGV[4]
local found = redis.call('HMGET', key, 'n:' .. name, 'run', 'of', 'q:' .. name, 'k:' .. name, unpack(ARGV, 10))
if not found[1] then return {'other'} end
local number, attempt, fence, stamp, edges, more = found[1]:match('^ready (%d+) (%d+) (%d+) (%d+) (%S+) %S+ (.*)$')
local counters, event = found[2]:match('^(.* )(%d+) %-$')
if number ~= visit or attempt ~= ARGV[5] or not event then return {'other'} end
local fp, parent = found[3]:match('^(%S+) (%S+)')
if fp ~= ARGV[8] then return {'shape', found[3]} end
if parent ~= '-' then return {'other'} end
-- An item's map, which must not have stopped, is the first field that was named.
if ARGV[9] ~= '' and not (found[6] or ''):find('^%d+ %d+ %d+ %d+ %d+ %d+ 0 ') then return {'other'} end
if more ~= '' and more:find('"[rcghsu]') then
  local fields = cjson.decode(more)
  if fields.handed or fields.since or fields.child then return {'other'} end
  fields.unseen, fields.rings, fields.granted = nil, nil, nil
  more = next(fields) and cjson.encode(fields) or ''
end
local time = redis.call('TIME')
local now = tonumber(ARGV[1]) or time[1] * 1000 + math.floor(time[2] / 1000)
local record = 'running ' .. visit .. ' ' .. attempt .. ' ' .. fence + ARGV[7] .. ' ' .. stamp .. ' ' .. edges .. ' ' .. ARGV[6] .. ' ' .. more
event = event + 1
redis.call('HSET', key, 'n:' .. name, record, 'run', counters .. event .. ' -')
redis.call('XADD', key .. ':e', event .. '-0', 'e', 'node.started\n' .. now .. '\n' .. visit .. '\n' .. name .. '\n' .. attempt)
if event % 500 == 0 then redis.call('XTRIM', key .. ':e', 'MAXLEN', '~', 10000) end
redis.call('ZADD', KEYS[1] .. 'timers', now + LEASE, 'node|' .. ARGV[2] .. '|' .. name)
local last, asked = #ARGV - 3, found[4] and cjson.decode(found[4])
asked = asked and asked[1] == tonumber(visit) and asked
if not (asked or found[5] or ARGV[9] ~= '') then return {record, unpack(found, 6, #ARGV)} end
for place = last, last + 4 do found[place] = false end
if ARGV[9] ~= '' then found[last] = redis.call('HGET', key .. ':f', ARGV[9]) end
if asked then
  found[last + 1], found[last + 2] = found[4], redis.call('HMGET', key .. ':i', unpack(asked, 2))
  found[last + 3] = redis.call('HMGET', key .. ':d', unpack(asked, 2))
end
if found[5] then
  local kept, messages = {redis.call('HGET', key .. ':s', name), redis.call('HGET', key, 't:' .. name .. '.' .. visit)}, {}
  for place = 1, tonumber(redis.call('HGET', key .. ':m', '#' .. name) or 0) do
    messages[place] = redis.call('HGET', key .. ':m', place .. '.' .. name)
  end
  kept[3], found[last + 4] = messages, kept
end
return {record, unpack(found, 6, last + 4)}
