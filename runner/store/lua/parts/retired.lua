-- Runs that ended some time ago: children's keys get their expiry, listings forget what is gone.
-- include: removed
local function expire_listings(limit)
  local key = prefix .. 'retiring'
  for _ = 1, limit do
    local run = redis.call('LPOP', key)
    if not run then break end
    local of = redis.call('HGET', prefix .. 'r:' .. run, 'of')
    local parent = of and of:match('^%S+ (%S+)')
    if of and redis.call('EXISTS', prefix .. 'r:' .. parent) == 0 then
      if ended(run) then remove_run(run) end
    -- Its parent may go on again since.
    elseif of and outlived(parent) then
      retire(run)
    end
  end
  local gone = redis.call('ZRANGEBYSCORE', prefix .. 'retired', '-inf', now, 'LIMIT', 0, limit)
  for _, entry in ipairs(gone) do unlist_run(entry:match('^([^\n]*)\n([^\n]*)\n([^\n]*)\n(.*)$')) end
  many('ZREM', prefix .. 'retired', gone)
end
