-- Apply a plan of `scheduler/plan.py` whole, or answer with what has changed since it was made.
--
-- No shape and no JSON is read: the caller knows the graph. Sums and arrivals below their threshold commute;
-- all else that the plan relies on is a guard. `store/redis/plans.py` writes the arguments, and puts in front of
-- this the constants LEASE and MOST (bytes that a run may have) and `message`, made from the doorbell's template
-- (false where doorbells are returned).
-- Keys touched: r:<run> and, by the plan's commands, its parts; timers; queues; runs:<status>; what the
--   plan's commands name.
-- Arguments: 1 a test's time or "", 2 run, 3 graph, 4 the task that rings (JSON), 5 bytes more, 6 numbers (see
--   HEAD), 7 "" or "stopping before follow-up": what the run must have for stopping, the time (ms) before which
--   it must be or 0, which follow-up this is; 8 "", or by how much a claim raises the fence and its nonce: then the
--   node that alone becomes ready is claimed in this call; then names of fields: of guards, and of arrivals (count, node);
--   values of guards; arrivals: numbers (see ARRIVAL), node or loop, its
--   record when it begins first, what is counted then; absent questions; routes:
--   queue, its list, priority; fields and values to put; results: field, value; timers dropped; timers set: ms
--   from now, member; events: kind, tail, data; bells: route, node, visit, attempt; at the end commands: how many
--   arguments, command, key without prefix, arguments.
-- Words: a list of follow-ups, then doorbells where they are returned; or a word: "changed" and what was read,
--   "full" and two sizes, "stale" for a follow-up that was done, "gone".
local HEAD, ARRIVAL = '>hhhhhHHHHHHHHHH', '>HHHHIBB'
local ANY, TURN, ITEM, ALSO = 1, 2, 3, 4
local prefix, run = KEYS[1], ARGV[2]
local key, timers = prefix .. 'r:' .. run, prefix .. 'timers'
local more_active, more_waiting, more_held, more_failed, more_started, guards, arrivals, questions, routes, puts,
  results, dropped, set, told, rung = struct.unpack(HEAD, ARGV[6])
local at = 9 + guards + 2 * arrivals
local found
if at < 4000 then
  found = redis.call('HMGET', key, 'run', 'size', 'lock', unpack(ARGV, 9, at - 1))
else
  found = redis.call('HMGET', key, 'run', 'size', 'lock')
  for first = 9, at - 1, 4000 do
    local part = redis.call('HMGET', key, unpack(ARGV, first, math.min(first + 3999, at - 1)))
    for place = 1, #part do found[first - 6 + place] = part[place] end
  end
end
if not found[1] then return {'gone'} end
local time = redis.call('TIME')
local now = tonumber(ARGV[1]) or time[1] * 1000 + math.floor(time[2] / 1000)

-- What the plan relies on.
local status, active, waiting, held, failed, started, events, stopping =
  found[1]:match('^(%S+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+)$')
local wanted, before, follow_up = '-', 0, ''
if ARGV[7] ~= '' then wanted, before, follow_up = ARGV[7]:match('^(%S+) (%d+) (.*)$') end
local changed = stopping ~= wanted or (found[3] or '') ~= '' or (before ~= 0 and before ~= '0' and now >= tonumber(before))
for place = 1, guards do
  local value, said = found[place + 3] or '', ARGV[at + place - 1]
  if value ~= said then
    local mark = said:byte()
    if mark == 126 then  -- "~": it begins with that
      changed = changed or value:sub(1, #said - 1) ~= said:sub(2)
    elseif mark == 33 then  -- "!": no result yet
      changed = changed or value:find('^completed ') or value:find('^failed ')
    else
      changed = true
    end
  end
end
at = at + guards
local after = at + 4 * arrivals
if questions > 0 and not changed then
  for _, asked in ipairs(redis.call('HMGET', key .. ':i', unpack(ARGV, after, after + questions - 1))) do
    changed = changed or asked
  end
end
if changed then
  redis.call('HINCRBY', prefix .. 'conflicts', ARGV[3], 1)
  return {'changed', unpack(found, 1, guards + 3)}
end
local bytes, size = tonumber(ARGV[5]), tonumber(found[2] or 0)
-- With a "+" in front, bytes are taken whatever the size: an answer.
if bytes > 0 and size + bytes > MOST and stopping == '-' and ARGV[5]:byte() ~= 43 then return {'full', size, bytes} end
-- Timers that go are the first write, see parts/room.lua.
if follow_up ~= '' and redis.call('ZREM', timers, 'follow|' .. run .. '|' .. follow_up) == 0 then return {'stale'} end

local first_route = after + questions
local follow, fields, due, rings, lists = {}, {'size', size + bytes}, {}, 0, {}
local function ring(route, name, visit, attempt)
  local place = first_route + 3 * route
  rings = rings + 1
  if message then
    local list = ARGV[place + 1]
    local texts = lists[list]
    local text = message(run .. '.' .. name .. '.' .. visit .. '.' .. attempt, name, visit, attempt, ARGV[place],
      ARGV[place + 2], time[1] .. '.' .. time[2])
    if texts then texts[#texts + 1] = text else lists[list] = {text} end
  else
    lists[rings] = {run, name, tonumber(visit), tonumber(attempt), ARGV[place], tonumber(ARGV[place + 2]), ARGV[3]}
  end
end

-- Arrivals: the last one, or the first live one of "any", makes the node ready. What came to it over the edges of
-- other scopes stands before it, as ALSO.
local stays
local last, also_arrived, also_alive, also_live = 2, 0, 0, 0
for place = 1, arrivals do
  local stamp, own, number, live, needs, kind, route = struct.unpack(ARRIVAL, ARGV[at])
  local name, count, record = ARGV[at + 1], found[2 + guards + 2 * place], found[3 + guards + 2 * place]
  local arrived, alive, counted = number, live, ARGV[at + 3]
  if kind == ITEM then
    -- One of a map's items has ended; needs is its window, own the visit.
    local visit, total, begun, busy, rest, idle_items, waits, swept =
      count:match('^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
    if tonumber(visit) ~= own or waits ~= '0' then return {'other'} end
    total, begun, busy = tonumber(total), tonumber(begun), busy - 1
    local item = name .. '[' .. begun .. ']'
    if begun == total then
      if busy == 0 and rest == '0' then follow[#follow + 1] = 'map ' .. name .. ' ' .. events end
    elseif needs == 0 or busy + 1 < needs or begun + 1 == total or redis.call('HEXISTS', key, 'n:' .. item) == 1 then
      follow[#follow + 1] = 'map ' .. name .. ' ' .. events
    elseif busy < needs then
      begun, busy = begun + 1, busy + 1
      fields[last + 1], fields[last + 2] = 'n:' .. item, ARGV[at + 2]
      last = last + 2
      due[#due + 1], due[#due + 2] = now + LEASE, 'node|' .. run .. '|' .. item
      ring(route, item, visit, 1)
      more_started = more_started - 1
    end
    counted, count = table.concat({visit, total, begun, busy, rest, idle_items, 0, swept}, ' '), nil
  end
  if count then
    local round, had, had_alive = count:match('^%[(%d+),(%d+),(%d+)')
    if tonumber(round) == stamp then
      arrived, alive = arrived + had, alive + had_alive
      counted = '[' .. round .. ',' .. arrived .. ',' .. alive .. ']'
    end
  end
  if kind ~= ALSO then
    fields[last + 1], fields[last + 2] = ARGV[7 + guards + 2 * place], counted
    last = last + 2
  end
  if kind == ALSO then
    also_arrived, also_alive, also_live = also_arrived + arrived, also_alive + alive, also_live + live
  elseif kind == ITEM then
    count = nil
  elseif kind == TURN then
    if arrived == needs then follow[#follow + 1] = 'turn ' .. name .. ' ' .. stamp end
  else
    local visit, pending, begun, number_, fence, settled, nonce = 1, true, ARGV[at + 2], nil, nil, nil, nil
    if record then
      pending, number_, fence, settled, nonce = record:match('^(%a+) (%d+) %d+ (%d+) (%d+) %S+ (%S+)')
      pending = pending == 'pending' or tonumber(settled) ~= own
    end
    arrived, alive, live = arrived + also_arrived, alive + also_alive, live + also_live
    also_arrived, also_alive, also_live = 0, 0, 0
    if pending and arrived >= needs and alive == 0 then
      follow[#follow + 1] = 'dead ' .. name
    elseif pending and ((live > 0 and kind == ANY) or (arrived >= needs and alive > 0)) then
      if record then
        visit = number_ + 1
        begun = 'ready ' .. visit .. ' 1 ' .. fence .. ' ' .. own .. ' - ' .. nonce .. begun:match('^%a+ 1 1 0 %d+ %- %-(.*)$')
      end
      if ARGV[8] ~= '' and arrivals == 1 then
        -- The only node that becomes ready stays with the worker: it is claimed in the same call.
        local step, mark = ARGV[8]:match('^(%d+) (.*)$')
        local before_fence, own_fence, after_fence = begun:match('^ready (%d+ 1) (%d+) (%d+ %-) %S+ ')
        begun = 'running ' .. before_fence .. ' ' .. own_fence + step .. ' ' .. after_fence .. ' ' .. mark .. ' '
          .. begun:match('^%a+ %d+ 1 %d+ %d+ %- %S+ (.*)$')
        stays = {name, visit, begun}
      end
      fields[last + 1], fields[last + 2] = ARGV[8 + guards + 2 * place], begun
      last = last + 2
      due[#due + 1], due[#due + 2] = now + LEASE, 'node|' .. run .. '|' .. name
      if not stays then ring(route, name, visit, 1) end
    end
  end
  at = at + 4
end
if stays then more_active, more_started = more_active + 1, more_started + 1 end
active = active + more_active + rings
if more_started + rings ~= 0 then started = started + more_started + rings end
if more_waiting ~= 0 then waiting = waiting + more_waiting end
if more_held ~= 0 then held = held + more_held end
if more_failed ~= 0 then failed = failed + more_failed end
local idle = waiting == '0' or waiting == 0
local none_held = held == '0' or held == 0
at = first_route + 3 * routes
for place = at, at + 2 * puts - 1 do
  last = last + 1
  fields[last] = ARGV[place]
end
at = at + 2 * puts
for place = 1, results do
  fields[last + 1], fields[last + 2] = ARGV[at], events + 1 .. ' ' .. ARGV[at + 1]
  last, at = last + 2, at + 2
end
if dropped > 0 then redis.call('ZREM', timers, unpack(ARGV, at, at + dropped - 1)) end
at = at + dropped
for place = 1, set do
  due[#due + 1], due[#due + 2] = now + ARGV[at], ARGV[at + 1]
  at = at + 2
end

-- Events, and the run's status out of its counters.
local first_event = events
local function tell(kind, tail, data)
  events = events + 1
  if data ~= '' then
    redis.call('XADD', key .. ':e', events .. '-0', 'e', kind .. '\n' .. now .. tail, 'd', data)
  else
    redis.call('XADD', key .. ':e', events .. '-0', 'e', kind .. '\n' .. now .. tail)
  end
  if events % 500 == 0 then redis.call('XTRIM', key .. ':e', 'MAXLEN', '~', 10000) end
end
for place = 1, told do
  tell(ARGV[at], ARGV[at + 1], ARGV[at + 2])
  at = at + 3
end
if stays then tell('node.started', '\n' .. stays[2] .. '\n' .. stays[1] .. '\n1', '') end
for place = 1, rung do
  ring(tonumber(ARGV[at]), ARGV[at + 1], ARGV[at + 2], ARGV[at + 3])
  at = at + 4
end
-- A follow-up counts as active, so that the run goes on, and has a timer, so that a sweep does it.
if active + #follow == 0 and idle and none_held then follow[1] = 'end' end
for place = 1, #follow do
  due[#due + 1], due[#due + 2] = now + LEASE, 'follow|' .. run .. '|' .. follow[place]
end
active = active + #follow
local was = status
status = active > 0 and 'executing' or (none_held and 'interrupted' or 'needs_migration')
if status ~= was then
  tell('run.status', '\n0\n\n' .. status, '')
  local created = redis.call('HGET', key, 'created')
  redis.call('ZREM', prefix .. 'runs:' .. was, run)
  redis.call('ZADD', prefix .. 'runs:' .. status, created, run)
end
fields[last + 1], fields[last + 2] = 'run', status .. ' ' .. active .. ' ' .. waiting .. ' ' .. held .. ' '
  .. failed .. ' ' .. started .. ' ' .. events .. ' ' .. stopping
last = last + 2
for first = 1, last, 4000 do redis.call('HSET', key, unpack(fields, first, math.min(first + 3999, last))) end
for first = 1, #due, 4000 do redis.call('ZADD', timers, unpack(due, first, math.min(first + 3999, #due))) end

-- What the plan says of other keys. In an argument that begins with \1, "\1e2\1" is the number of the plan's
-- second event and "\1n300\1" the time in 300 ms.
local function fill(what, more)
  return ('%.0f'):format((what == 'e' and first_event or now) + more)
end
while ARGV[at] do
  local arguments = {}
  for place = 1, tonumber(ARGV[at]) do
    local argument = ARGV[at + 2 + place]
    if argument:byte() == 1 then argument = argument:sub(2):gsub('\1(%a)(%d+)\1', fill) end
    arguments[place] = argument
  end
  redis.call(ARGV[at + 1], prefix .. ARGV[at + 2], unpack(arguments))
  at = at + 3 + #arguments
end
if not message then return {follow, unpack(lists)} end
for list, texts in pairs(lists) do
  for first = 1, #texts, 1000 do redis.call('LPUSH', list, unpack(texts, first, math.min(first + 999, #texts))) end
end
if stays then return {follow, stays[1], stays[3]} end
return {follow}
