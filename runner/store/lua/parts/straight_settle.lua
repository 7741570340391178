-- The straight way of a settle: a completed node outside of loops, in a run that goes on and does not
-- stop. It costs a third of the general way, which follows and knows every case: anything unusual falls
-- through to it before anything is written. A property test holds the two equal to the reference.
-- include: settings
-- include: bells
-- include: straight_targets
-- include: echo
-- include: straight_item
local function settle_straight()
  local run, name, visit, fence = ARGV[5], ARGV[6], ARGV[7], ARGV[8]
  local key = prefix .. 'r:' .. run
  local own = redis.call('HMGET', key, 'n:' .. name, 'run', 'of', 'lock', 'size')
  local attempt = (own[1] or ''):match('^running ' .. visit .. ' (%d+) ' .. fence .. ' 0 %- %S+ $')
  if not attempt or (own[4] or '') ~= '' then return end
  local active, others, started, event = own[2]:match('^executing (%d+) (%d+ %d+ %d+) (%d+) (%d+) %-$')
  local fp, parent, graph = own[3]:match('^(%S+) (%S+) (.*)$')
  local edges = active and redis.call('HGET', prefix .. 'g:' .. fp, 's:' .. name)
  if not edges then return end
  local fields, ready = straight_targets(key, cjson.decode(edges), ARGV[11])
  active = active - 1 + (ready and #ready or 0)
  if not ready or active < 1 then return end
  local root, bytes = parent ~= '-' and root_of(key), #ARGV[12] + #ARGV[13]
  local size = (root and root.size or tonumber(own[5] or 0)) + bytes
  if size > most then return end
  if not root then fields[#fields + 1], fields[#fields + 2] = 'size', size end
  redis.call('ZREM', prefix .. 'timers', 'node|' .. run .. '|' .. name)  -- first: see room.lua
  event = event + 1
  local bits, at = ARGV[11] ~= '' and ARGV[11] or '-', name .. '.' .. visit
  redis.call('HSET', key, 'x:' .. at, event .. ' ' .. ARGV[13], 'o:' .. at, ARGV[12],
    'run', 'executing ' .. active .. ' ' .. others .. ' ' .. started + #ready .. ' ' .. event .. ' -',
    'n:' .. name, table.concat({'completed', visit, attempt, fence, 0, bits, ARGV[9], ''}, ' '), unpack(fields))
  local done = {kind = 'node.completed', visit = visit, node = name, detail = '', data = told(ARGV[12])}
  write_event(key, event, done, name)
  if root then echo(root, done, bytes) end
  rung_by_task(run, name, visit, attempt)
  if #ready > 0 then make_ready(graph, ready) end
  return ring_all('settled')
end

if ARGV[10] == 'completed' and ARGV[15] == '0' and ARGV[16] == '' and #ARGV == 18 then
  local owner = ARGV[6]:byte(-1) == 93 and ARGV[7] == '1' and ARGV[6]:match('^(.*)%[%d+%]$')
  local said
  if owner then said = settle_item(owner) else said = settle_straight() end
  if said then return said end
end
