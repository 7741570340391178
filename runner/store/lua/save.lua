-- Write the checkpoint of a running visit. It knows one rule, the fence, and writes like `keep` of
-- store/redis/transaction/checkpoints.py: see test_a_checkpoint_is_the_same_by_script_and_transaction.
--
-- Keys touched: r:<run> (document), r:<run>:m (messages), r:<root> (size).
-- Arguments: 6 run, 7 node, 8 visit, 9 fence, 10 document (JSON), 11 number of stored messages that stay, 12 ... the
--   messages after those (JSON).
-- Words: "saved", "stale"; "full" and two sizes (parts/size.lua).
-- include: fence
-- include: size
local MOST_MESSAGES = 100000  -- as in take.lua
local MESSAGE_BYTES = 50  -- of a message beside its text, as in store/redis/sizes.py
local key, name = prefix .. 'r:' .. ARGV[6], ARGV[7]
local own = redis.call('HMGET', key, 'n:' .. name, 'root', 'run', 'size')
if not holds(own[1], ARGV[8], ARGV[9]) then return {'stale'} end
local list, count_field = key .. ':m', '#' .. name
local had, stay = tonumber(redis.call('HGET', list, count_field) or 0), tonumber(ARGV[11])
had = math.min(had, MOST_MESSAGES)
local kept = redis.call('HSTRLEN', key, 'k:' .. name)
-- A single byte isn't a document: it marks a node with a task of its own.
local bytes = #ARGV[10] - (kept > 1 and kept or 0)
for place = stay + 1, had do
  bytes = bytes - MESSAGE_BYTES - redis.call('HSTRLEN', list, place .. '.' .. name)
end
local count, messages = math.min(had, stay), {}
for place = 12, #ARGV do
  count, bytes = count + 1, bytes + MESSAGE_BYTES + #ARGV[place]
  messages[#messages + 1], messages[#messages + 2] = count .. '.' .. name, ARGV[place]
end
local size = own[2] and redis.call('HGET', prefix .. 'r:' .. own[2], 'size') or own[4]
local refused = full(size, own[3], bytes)
if refused then return refused end

if own[2] then
  grow(own[2], bytes)
  redis.call('HSET', key, 'k:' .. name, ARGV[10])
else
  redis.call('HSET', key, 'k:' .. name, ARGV[10], 'size', (size or 0) + bytes)
end
-- Most nodes keep no messages, and need no key to say so.
if count + had > 0 then messages[#messages + 1], messages[#messages + 2] = count_field, count end
many('HSET', list, messages)
for place = count + 1, had do redis.call('HDEL', list, place .. '.' .. name) end
return {'saved'}
