-- Apply a plan of `scheduler/plan.py` whole, or answer with what has changed since it was made.
--
-- No shape and no JSON is read: the caller knows the graph. Sums and arrivals below their threshold commute;
-- all else that the plan relies on is a guard. `store/redis/plans.py` writes the arguments.
-- Keys touched: r:<run> and, by the plan's commands, its parts; timers; queues; runs:<status>; what the
--   plan's commands name.
-- Arguments: 1 a test's time or "", 2 lease (ms), 3 bytes that a run may have, 4 run, 5 graph, 6 the word of
--   success, 7 what the run must have for "stopping", 8 bytes more, 9 to 13 more active, waiting, held, failed,
--   started, 14 the task that rings (JSON), 15 a follow-up that this is (member of timers) or "", 16 the time
--   (ms) before which it must be or "", 17 to 25 how many: guards, arrivals, absent questions, puts, results,
--   timers dropped, timers set, events, bells; then the fields of guards and of arrivals (count, node), the
--   guards' values, and each list. Arrivals: node or loop, round, round of the node,
--   how many, live ones, needed, "all", "any" or "turn" (a loop), rest of the record, queue, its list, priority.
--   At the end, commands: how many arguments, command, key without prefix, arguments.
-- Words: the plan's own, then follow-ups; then doorbells, where there is no template. "changed" and what was
--   read; "full" and two sizes; "stale" for a follow-up that was done.
local prefix, run, graph, lease = KEYS[1], ARGV[4], ARGV[5], tonumber(ARGV[2])
local key, timers = prefix .. 'r:' .. run, prefix .. 'timers'
local time = redis.call('TIME')
local now = tonumber(ARGV[1]) or time[1] * 1000 + math.floor(time[2] / 1000)
local guards, arrivals = tonumber(ARGV[17]), tonumber(ARGV[18])
local at = 26 + guards + 2 * arrivals

-- What the plan relies on.
local found
if at < 4000 then
  found = redis.call('HMGET', key, 'run', 'size', 'lock', unpack(ARGV, 26, at - 1))
else
  found = redis.call('HMGET', key, 'run', 'size', 'lock')
  for first = 26, at - 1, 4000 do
    local part = redis.call('HMGET', key, unpack(ARGV, first, math.min(first + 3999, at - 1)))
    for place = 1, #part do found[first - 23 + place] = part[place] end
  end
end
if not found[1] then return {'gone'} end
local status, active, waiting, held, failed, started, events, stopping =
  found[1]:match('^(%S+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+)$')
local changed = stopping ~= ARGV[7] or (found[3] or '') ~= '' or (ARGV[16] ~= '' and now >= tonumber(ARGV[16]))
for place = 1, guards do
  local value, said = found[place + 3] or '', ARGV[at + place - 1]
  local mark = said:byte()
  if mark == 126 then  -- "~": it begins with that
    changed = changed or value:sub(1, #said - 1) ~= said:sub(2)
  elseif mark == 33 then  -- "!": no result yet
    changed = changed or value:find('^completed ') or value:find('^failed ')
  else
    changed = changed or value ~= said
  end
end
at = at + guards
local questions = tonumber(ARGV[19])
if questions > 0 and not changed then
  for _, asked in ipairs(redis.call('HMGET', key .. ':i', unpack(ARGV, at + 11 * arrivals, at + 11 * arrivals + questions - 1))) do
    changed = changed or asked
  end
end
if changed then return {'changed', unpack(found, 1, math.min(#found, guards + 3))} end
local bytes, size, most = tonumber(ARGV[8]), tonumber(found[2] or 0), tonumber(ARGV[3])
if bytes > 0 and size + bytes > most and stopping == '-' then return {'full', size, bytes} end
if ARGV[15] ~= '' and redis.call('ZREM', timers, ARGV[15]) == 0 then return {'stale'} end

-- Sums and arrivals.
active, waiting, held = active + ARGV[9], waiting + ARGV[10], held + ARGV[11]
failed, started = failed + ARGV[12], started + ARGV[13]
local first_event, fields, ready, bells, follow = events, {'size', size + bytes}, {}, {}, {}
local last = 2
local function ring(name, visit, attempt, queue, list, priority)
  bells[#bells + 1] = {name, visit, attempt, queue, list, priority}
end
for place = 1, arrivals do
  local field, count, record = ARGV[24 + guards + 2 * place], found[2 + guards + 2 * place], found[3 + guards + 2 * place]
  local name, stamp, own, live, needs = ARGV[at], ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5])
  local round, arrived, alive = (count or '[0,0,0]'):match('^%[(%d+),(%d+),(%d+)')
  if round ~= stamp then arrived, alive = 0, 0 end
  arrived, alive = arrived + ARGV[at + 3], alive + live
  fields[last + 1], fields[last + 2] = field, '[' .. stamp .. ',' .. arrived .. ',' .. alive .. ']'
  last = last + 2
  if ARGV[at + 6] == 'turn' then
    if arrived == needs then follow[#follow + 1] = 'turn ' .. name .. ' ' .. stamp end
  else
    local visit, fence, nonce, pending = 0, 0, '-', true
    if record then
      local was, number, held_by, settled, mark = record:match('^(%a+) (%d+) %d+ (%d+) (%d+) %S+ (%S+)')
      visit, fence, nonce, pending = number, held_by, mark, was == 'pending' or settled ~= own
    end
    if pending and arrived >= needs and alive == 0 then
      follow[#follow + 1] = 'dead ' .. name
    elseif pending and ((live > 0 and ARGV[at + 6] == 'any') or (arrived >= needs and alive > 0)) then
      visit = visit + 1
      fields[last + 1] = ARGV[25 + guards + 2 * place]
      fields[last + 2] = 'ready ' .. visit .. ' 1 ' .. fence .. ' ' .. own .. ' - ' .. nonce .. ' ' .. ARGV[at + 7]
      last = last + 2
      ready[#ready + 1], ready[#ready + 2] = now + lease, 'node|' .. run .. '|' .. name
      ring(name, visit, 1, ARGV[at + 8], ARGV[at + 9], ARGV[at + 10])
    end
  end
  at = at + 11
end
at = at + questions
active, started = active + #bells, started + #bells
for place = 1, tonumber(ARGV[20]) do
  fields[last + 1], fields[last + 2] = ARGV[at], ARGV[at + 1]
  last, at = last + 2, at + 2
end
for place = 1, tonumber(ARGV[21]) do
  fields[last + 1], fields[last + 2] = ARGV[at], events + 1 .. ' ' .. ARGV[at + 1]
  last, at = last + 2, at + 2
end

-- Timers: first those that go, see parts/room.lua.
local dropped = tonumber(ARGV[22])
if dropped > 0 then redis.call('ZREM', timers, unpack(ARGV, at, at + dropped - 1)) end
at = at + dropped
for place = 1, tonumber(ARGV[23]) do
  ready[#ready + 1], ready[#ready + 2] = now + ARGV[at], ARGV[at + 1]
  at = at + 2
end

-- Events, and the run's status out of its counters.
local function tell(kind, tail, data)
  events = events + 1
  local text = kind .. '\n' .. now .. tail
  if data ~= '' then
    redis.call('XADD', key .. ':e', 'MAXLEN', '~', 10000, events .. '-0', 'e', text, 'd', data)
  else
    redis.call('XADD', key .. ':e', 'MAXLEN', '~', 10000, events .. '-0', 'e', text)
  end
end
for place = 1, tonumber(ARGV[24]) do
  tell(ARGV[at], ARGV[at + 1], ARGV[at + 2])
  at = at + 3
end
for place = 1, tonumber(ARGV[25]) do
  ring(ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5])
  at = at + 6
end
-- A follow-up counts as active, so that the run goes on, and has a timer, so that a sweep does it.
if active + #follow == 0 and held + waiting == 0 then follow[1] = 'end' end
for _, what in ipairs(follow) do
  ready[#ready + 1], ready[#ready + 2] = now + lease, 'follow|' .. run .. '|' .. what
end
active = active + #follow
local before = status
status = active > 0 and 'executing' or (held > 0 and 'needs_migration' or 'interrupted')
if status ~= before then
  tell('run.status', '\n0\n\n' .. status, '')
  local created = redis.call('HGET', key, 'created')
  redis.call('ZREM', prefix .. 'runs:' .. before, run)
  redis.call('ZADD', prefix .. 'runs:' .. status, created, run)
end
fields[last + 1] = 'run'
fields[last + 2] = status .. ' ' .. active .. ' ' .. waiting .. ' ' .. held .. ' ' .. failed .. ' ' .. started .. ' '
  .. events .. ' ' .. stopping
last = last + 2
for first = 1, last, 4000 do redis.call('HSET', key, unpack(fields, first, math.min(first + 3999, last))) end
for first = 1, #ready, 4000 do
  redis.call('ZADD', timers, unpack(ready, first, math.min(first + 3999, #ready)))
end

-- What the plan says of other keys. In an argument that begins with \1, "\1e2\1" is the number of the plan's
-- second event and "\1n300\1" the time in 300 ms.
local function fill(what, more)
  return string.format('%.0f', (what == 'e' and first_event or now) + more)
end
while ARGV[at] do
  local arguments = {}
  for place = 1, tonumber(ARGV[at]) do
    local argument = ARGV[at + 2 + place]
    arguments[place] = argument:byte() == 1 and argument:sub(2):gsub('\1(%a)(%d+)\1', fill) or argument
  end
  redis.call(ARGV[at + 1], prefix .. ARGV[at + 2], unpack(arguments))
  at = at + 3 + #arguments
end

-- Doorbells: Python has put `message` in front of this, made from the template (see doorbell.py).
local said = {ARGV[6], follow}
if #bells == 0 then return said end
if not message then
  for place, bell in ipairs(bells) do said[place + 2] = {run, bell[1], tonumber(bell[2]), tonumber(bell[3]), bell[4], tonumber(bell[6]), graph} end
  return said
end
local lists = {}
for _, bell in ipairs(bells) do
  local id = run .. '.' .. bell[1] .. '.' .. bell[2] .. '.' .. bell[3]
  local text = message(id, bell, time[1] .. '.' .. time[2], ARGV[14], run, graph)
  local list = lists[bell[5]]
  if list then list[#list + 1] = text else lists[bell[5]] = {text} end
end
for list, texts in pairs(lists) do
  for first = 1, #texts, 1000 do redis.call('LPUSH', list, unpack(texts, first, math.min(first + 999, #texts))) end
end
return said
