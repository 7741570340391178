-- The fast path of a settle: a completed node outside of loops, in a run that goes on and does not
-- stop. It costs a third of the general way, which follows and knows every case: anything unusual falls
-- through to it before anything is written. A property test holds the two equal to the reference.
-- include: settings
-- include: doorbells
-- include: fast_targets
-- include: echo
-- include: fast_item
local function fast_settle()
  local run, name, visit, fence = ARGV[6], ARGV[7], ARGV[8], ARGV[9]
  local key = prefix .. 'r:' .. run
  local own = redis.call('HMGET', key, 'n:' .. name, 'run', 'of', 'lock', 'size')
  local attempt = (own[1] or ''):match('^running ' .. visit .. ' (%d+) ' .. fence .. ' 0 %- %S+ $')
  if not attempt or (own[4] or '') ~= '' then return end
  local active, others, started, event = own[2]:match('^executing (%d+) (%d+ %d+ %d+) (%d+) (%d+) %-$')
  local fp, parent, graph = own[3]:match('^(%S+) (%S+) (.*)$')
  local edges = active and redis.call('HGET', prefix .. 'g:' .. fp, 's:' .. name)
  if not edges then return end
  local fields, ready = fast_targets(key, cjson.decode(edges), ARGV[12])
  active = active - 1 + (ready and #ready or 0)
  if not ready or active < 1 then return end
  local root, bytes = parent ~= '-' and root_of(key), VISIT_BYTES + #ARGV[13] + #ARGV[14]
  local size = (root and root.size or tonumber(own[5])) + bytes
  if size > most then return end
  if not root then fields[#fields + 1], fields[#fields + 2] = 'size', size end
  redis.call('ZREM', prefix .. 'timers', 'node|' .. run .. '|' .. name)  -- first: see room.lua
  event = event + 1
  local bits, visit_id = ARGV[12] ~= '' and ARGV[12] or '-', name .. '.' .. visit
  redis.call('HSET', key, 'x:' .. visit_id, event .. ' ' .. ARGV[14], 'o:' .. visit_id, ARGV[13],
    'run', 'executing ' .. active .. ' ' .. others .. ' ' .. started + #ready .. ' ' .. event .. ' -',
    'n:' .. name, table.concat({'completed', visit, attempt, fence, 0, bits, ARGV[10], ''}, ' '), unpack(fields))
  local done = {kind = 'node.completed', letter = 'c', visit = visit, node = name, detail = '', data = short_output(ARGV[13])}
  write_event(key, event, done, name)
  if root then echo(root, done, bytes) end
  rung_by_task(run, name, visit, attempt)
  if #ready > 0 then make_ready(graph, ready) end
  return ring_all('settled')
end

if ARGV[11] == 'completed' and ARGV[16] == '0' and ARGV[17] == '' and #ARGV == 19 then
  local owner = ARGV[7]:byte(-1) == 93 and ARGV[8] == '1' and ARGV[7]:match('^(.*)%[%d+%]$')
  local fast_reply
  if owner then fast_reply = settle_item(owner) else fast_reply = fast_settle() end
  if fast_reply then return fast_reply end
end
