-- Runs that ended some time ago: children's keys get their expiry, listings forget what is gone.
-- include: ended
local function forget(limit)
  local key = prefix .. 'retiring'
  for _ = 1, limit do
    local run = redis.call('LPOP', key)
    if not run then break end
    local of = redis.call('HGET', prefix .. 'r:' .. run, 'of')
    -- Its parent may go on again since.
    if of and outlived((of:match('^%S+ (%S+)'))) then retire(run) end
  end
  local gone = redis.call('ZRANGEBYSCORE', prefix .. 'retired', '-inf', now, 'LIMIT', 0, limit)
  for _, run in ipairs(gone) do unlist('runs', run) end
  for _, index in ipairs({'retired', 'runs', 'runs:completed', 'runs:failed', 'runs:cancelled'}) do
    many('ZREM', prefix .. index, gone)
  end
end
