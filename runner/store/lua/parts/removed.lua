-- Taking an ended run out of the store.
-- include: ended
local function ended(run)
  local status, unreported = unpack(redis.call('HMGET', prefix .. 'r:' .. run, 'run', 'unreported'))
  return status and not unreported and FINAL[status:match('^%S+')]
end

-- Remove a run's keys and its entries in listings; its children are left to the sweep, which finds them
-- without a parent.
local function remove_run(run)
  local key = prefix .. 'r:' .. run
  local record, of, tags, idem = unpack(redis.call('HMGET', key, 'run', 'of', 'tags', 'idem'))
  redis.call('ZREM', prefix .. 'retired', retired(run))
  unlist_run(run, record:match('^%S+'), of:match('^%S+ %S+ (.*)$'), tags)
  many('RPUSH', prefix .. 'retiring', redis.call('LRANGE', key .. ':c', 0, -1))
  for _, suffix in ipairs(KEYS_OF_RUN) do redis.call('UNLINK', key .. suffix) end
  if idem then redis.call('UNLINK', idem) end
end
