-- Hold or return a slot of a limit for a node whose run lives in another partition: see docs/decisions/0030.
--
-- A held slot has no end. When its lease is over, a sweep asks the run's partition whether the node runs,
-- and drops the slot if not, unless its version has changed.
-- Keys touched: limit:h:<limit>, limit:q:<limit>, limit:waiting, timers; limits (read).
-- Arguments: 6 "hold" a slot or join the queue; "keep" a held slot for some time; "drop" it; "leave" the
--   queue, and drop a slot that is only kept; 7 limit, 8 its slots in the code (0: as many as are taken),
--   9 @<claim>|<run>|<node>, 10 since (ms) of a hold, otherwise the required version ("" for any),
--   11 ms of a keep.
-- Words: "held <version>", "shared <version>" if a claim of the same visit has it, "queued", "done" or "changed", then
--   the nodes that are offered a slot.
-- include: settings
-- include: offers
local how, key, slots, member = ARGV[6], ARGV[7], tonumber(ARGV[8]), ARGV[9]
local claim, run, node = member:match('^@([^|]*)|([^|]*)|(.*)$')
local timer, offered = 'slot|' .. run .. '|' .. claim .. '|' .. node .. '\n' .. key, {'done'}
local had = redis.call('ZSCORE', HOLDERS .. key, member)
if how == 'hold' then
  local taken, ahead, mine = queue_position(key, member, tonumber(ARGV[10]))
  if mine == 1 or taken + ahead < slots_of(key, slots) then
    if redis.call('ZREM', QUEUE .. key, member) == 1 then forget_idle(key) end
    redis.call('ZADD', HOLDERS .. key, 'inf', member)
    return {(had == 'inf' and 'shared ' or 'held ') .. look_later(key, member, lease)}
  end
  redis.call('ZADD', QUEUE .. key, 'NX', ARGV[10], member)
  redis.call('ZADD', prefix .. 'limit:waiting', 'NX', ARGV[10], key)
  offered[1] = 'queued'
  offer(key, slots, '', offered)
  return offered
end
local version = redis.call('ZSCORE', prefix .. 'timers', timer)
if how ~= 'leave' and ARGV[10] ~= '' and tonumber(version or 0) ~= tonumber(ARGV[10]) then return {'changed'} end
if how == 'keep' then
  redis.call('ZADD', HOLDERS .. key, 'XX', KEPT, member)
  look_later(key, member, tonumber(ARGV[11]))
elseif how == 'leave' and had == 'inf' then
  -- A claim holds it and follows, or was refused: then the lease ends.
  if redis.call('ZREM', QUEUE .. key, member) == 1 then forget_idle(key) end
else
  if slots == 0 then slots = redis.call('ZCOUNT', HOLDERS .. key, '(' .. now, 'inf') end
  redis.call('ZREM', prefix .. 'timers', timer)
  offer(key, slots, member, offered)
end
return offered
