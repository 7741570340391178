-- The fast path of a settle of an item: completed, in the first visit of a map that goes on, with at
-- most one other item to begin. Anything unusual falls through to the general way before anything is
-- written. A property test holds the two equal to the reference.
-- include: settings
-- include: doorbells
-- include: fast_targets
-- include: echo
-- include: fast_place

local function settle_item(owner)
  local run, name, fence = ARGV[6], ARGV[7], ARGV[9]
  local key, id = prefix .. 'r:' .. run, name .. '.1'
  local own = redis.call('HMGET', key, 'n:' .. name, 'run', 'of', 'lock', 'm:' .. owner, 'size')
  local attempt = (own[1] or ''):match('^running 1 (%d+) ' .. fence .. ' 0 %- %S+ $')
  if not attempt or (own[4] or '') ~= '' then return end
  local active, others, event = own[2]:match('^executing (%d+) (%d+ %d+ %d+ %d+) (%d+) %-$')
  local fp, parent, graph = own[3]:match('^(%S+) (%S+) (.*)$')
  local map_shape = active and redis.call('HGET', prefix .. 'g:' .. fp, 's:' .. owner .. '[]')
  if not map_shape then return end
  map_shape = cjson.decode(map_shape)
  local record, item = without_item(key, owner, own[5] or '', map_shape[1])
  active = active - (item and 0 or 1)
  if not record or active < 1 then return end
  local root, bytes = parent ~= '-' and root_of(key), VISIT_BYTES + #ARGV[13] + #ARGV[14]
  local size = (root and root.size or tonumber(own[6])) + bytes
  if size > most then return end
  redis.call('ZREM', prefix .. 'timers', 'node|' .. run .. '|' .. name)  -- first: see room.lua
  event = event + 1
  redis.call('HSET', key, 'x:' .. id, '0 ' .. ARGV[14], 'o:' .. id, ARGV[13], 'm:' .. owner, record,
    'run', 'executing ' .. active .. ' ' .. others .. ' ' .. event .. ' -',
    'n:' .. name, table.concat({'completed', 1, attempt, fence, 0, '-', ARGV[10], ''}, ' '), unpack(root and {} or {'size', size}))
  local done = {kind = 'node.completed', letter = 'c', visit = 1, node = name, detail = '', data = short_output(ARGV[13])}
  write_event(key, event, done, name)
  if root then echo(root, done, bytes) end
  rung_by_task(run, name, 1, attempt)
  if item then
    redis.call('HSET', key, 'n:' .. item, 'ready 1 1 0 0 - - ')
    make_ready(graph, {{item, 0, false, map_shape[2], map_shape[3]}})
  end
  return ring_all('settled')
end
