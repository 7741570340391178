-- Write the write set of a transaction: all of it, or nothing if a validated value has changed since `look` read it.
--
-- Counters of runs and arrivals are added to, and only their consequences are validated: so steps of different
-- nodes of a run don't disturb each other. This script knows no rule. redis/transaction/__init__.py explains it;
-- `WriteSet.arguments` in redis/transaction/sets.py writes the arguments, and its names are in brackets.
-- Keys touched: r:<run> and its parts, timers, early, queues, limits (parts/offers.lua), key:w:<graph>, and all keys
--   that the arguments name.
-- Arguments: from 6, each list after its length:
--   [expected] key, fields (a list, then their values: "" for absent or empty; after \2 only the beginning);
--   [patterns] key, field, pattern of its value (without a field: of "1", if the key exists);
--   [scores] key, member, its score; or key, "<" or ">=", a number of members; or keys with \0 between, "+<", a number
--     of members in all of them;
--   [deadline] the time (ms) before which the commit must happen, or 0;
--   [runs] key, pattern of the field `run` ("": only its events are written, if the run exists; "^$": the run
--     is new), the
--     counters expected (a letter for each that decides: small above 0, large 0), the most executions that may have
--     begun or 0, the changes of active, waiting, held, failed and started, its status, its reason to stop,
--     the number of events;
--   [arrivals] key, field, round, count, live count, the bound below which they stay or 0;
--   [limit_positions] slots of limits that are taken or waited for: limit, run|node, since (ms), number of slots, "1" if
--     one must be free for it, "0" if none;
--   [sizes] key, additional bytes, "1" if there must be room for them;
--   then the writes: [marked] the numbers, from 0, of the following texts that begin with \1 (one text); "1" to make room
--     (parts/make_room.lua); the runs' events; hashes: key, fields
--     (a list: field, value); hashes: key, fields to delete (a list); timers to set: ms, member; timers to drop;
--     commands (XTRIM's deletions are counted in metrics): number of arguments, name, key, arguments; shapes that
--     one run fewer uses: graph, fingerprint;
--     the task that rings or "";
--     doorbells: run, node, visit, attempt, queue, priority, graph; [slots] that are returned or offered (parts/offers.lua).
--   Keys have no prefix. In a value, event or time that begins with \1, "\1<run>:<n>\1" is the number of that
--   run's n-th event, and "\1 0:<ms>\1" without the blank is the time in that many ms.
-- Words: "done" and the time, then in lines the nodes that are offered a slot; "changed", then each of limit_positions
--   (taken, ahead, own) as it is; "full" and two sizes (parts/size.lua).
-- include: settings
-- include: doorbells
-- include: echo
-- include: offers
-- include: make_room
local place, changed, positions = 6, false, {}

local function take()
  place = place + 1
  return ARGV[place - 1]
end

local function number() return tonumber(take()) end

for _ = 1, number() do
  local key, count = prefix .. take(), number()
  for first = 1, count, 1000 do
    local last = math.min(first + 999, count)
    for nth, value in ipairs(redis.call('HMGET', key, unpack(ARGV, place + first - 1, place + last - 1))) do
      local known = ARGV[place + count + first + nth - 2]
      value = value or ''
      if known:byte() == 2 then known, value = known:sub(2), value:sub(1, #known - 1) end
      if value ~= known then changed = true end
    end
  end
  place = place + 2 * count
end
for _ = 1, number() do
  local key, field, pattern = prefix .. take(), take(), take()
  local value = field == '' and redis.call('EXISTS', key) == 1 and '1'
  if field ~= '' then value = redis.call('HGET', key, field) end
  if not (value or ''):find(pattern) then changed = true end
end
for _ = 1, number() do
  local keys, member, score = take(), take(), number()
  if member == '<' or member == '>=' or member == '+<' then
    local count = 0
    -- A key of runs contains the value of a tag, which may contain \0.
    for key in keys:gmatch(member == '+<' and '%Z+' or '.+') do count = count + redis.call('ZCARD', prefix .. key) end
    if (count < score) ~= (member ~= '>=') then changed = true end
  elseif tonumber(redis.call('ZSCORE', prefix .. keys, member) or 0) ~= score then
    changed = true
  end
end
local before = number()
if before > 0 and now >= before then changed = true end

local runs = {[0] = {first = now}}
for nth = 1, number() do
  local run = {key = prefix .. take(), was = take(), expected_status_counters = take(), most = number()}
  local more = {number(), number(), number(), number(), number()}
  local status, stopping = take(), take()
  run.events = number()
  local text = redis.call('HGET', run.key, 'run')
  if not (text or ''):find(run.was) then changed = true end
  if run.was == '^$' then text = 'executing 0 0 0 0 0 0 -' end
  if text then
    local old, active, waiting, held, failed, started, events, stops =
      text:match('@run(status active waiting held failed started events stopping)')
    local a, w, h, f = active + more[1], waiting + more[2], held + more[3], failed + more[4]
    local counters = {a = a, w = w, h = h, f = f}
    for letter in run.expected_status_counters:gmatch('%a') do
      if (counters[letter:lower()] > 0) ~= (letter == letter:lower()) then changed = true end
    end
    started = started + more[5]
    if run.most > 0 and started > run.most then changed = true end
    run.first = tonumber(events)
    -- It stopped executing: readers that wait for that are woken.
    run.rests = old == 'executing' and status ~= '' and status ~= old
    run.text = table.concat({status ~= '' and status or old, a, w, h, f, started, events + run.events,
      stopping ~= '' and stopping or stops}, ' ')
  end
  runs[nth] = run
end

local arrivals = {}
for nth = 1, number() do
  local key, field, round, more, live, below = prefix .. take(), take(), take(), number(), number(), number()
  local text = redis.call('HGET', key, field) or ''
  local had, arrived, alive = text:match('^%[(%d+),(%d+),(%d+)%]$')
  if had ~= round then
    if had and tonumber(had) > tonumber(round) then changed = true end
    arrived, alive = 0, 0
  end
  arrived, alive = arrived + more, alive + live
  if below > 0 and arrived >= below then changed = true end
  arrivals[nth] = {key, field, '[' .. round .. ',' .. arrived .. ',' .. alive .. ']'}
end
for _ = 1, number() do
  local key, member, since, concurrency, free = take(), take(), take(), number(), take() == '1'
  local taken, ahead, mine = queue_position(key, member, since)
  positions[#positions + 1] = table.concat({taken, ahead, mine}, ' ')
  if (mine == 1 or taken + ahead < concurrency) ~= free then changed = true end
end
local sizes = {}
for nth = 1, number() do
  local key, bytes, bounded = prefix .. take(), number(), take() == '1'
  local of, had = unpack(redis.call('HMGET', key, 'of', 'size'))
  local size = of and tonumber(had or 0)
  if size and bounded and bytes > 0 and size + bytes > most and not changed then return {'full', size, bytes} end
  sizes[nth] = {key, size and bytes}
end
if changed then return {'changed', positions} end

for offset in take():gmatch('%d+') do
  local nth = place + offset
  ARGV[nth] = ARGV[nth]:sub(2):gsub('\1(%d+):(%d+)\1', function(run, event)
    return ('%.0f'):format(runs[tonumber(run)].first + event)
  end)
end
if take() == '1' then make_room() end

-- Call a command with a number of the next arguments.
local function write(command, key, count)
  many(command, key, ARGV, place, place + count - 1)
  place = place + count
end

for _, run in ipairs(runs) do
  if run.text then
    for first = 0, run.events - 1, 1000 do
      local last = math.min(first + 1000, run.events) - 1
      push_event(run.key, run.first + first + 1, unpack(ARGV, place + first, place + last))
    end
    if run.rests then redis.call('XADD', run.key .. ':s', 'NOMKSTREAM', 'MAXLEN', 1, '*', 'n', 0) end
  end
  place = place + run.events
end
for _, arrival in ipairs(arrivals) do redis.call('HSET', unpack(arrival)) end
for _ = 1, number() do write('HSET', prefix .. take(), 2 * number()) end
for _ = 1, number() do write('HDEL', prefix .. take(), number()) end
-- Last, since each call moves a bucket of a table that new fields enlarged: so a waiting run doesn't keep two tables.
for _, run in ipairs(runs) do
  if run.text then redis.call('HSET', run.key, 'run', run.text) end
end
for _, size in ipairs(sizes) do
  if size[2] then redis.call('HINCRBY', size[1], 'size', size[2]) end
end
write('ZADD', prefix .. 'timers', 2 * number())
write('ZREM', prefix .. 'timers', number())
-- List the key of a queue by the time of its first run, or remove it if no run waits.
local function list_key(queue)
  local graph, key = queue:match('^key:q:([^:]*):(.*)$')
  local first = redis.call('ZRANGE', prefix .. queue, 0, 0, 'WITHSCORES')
  if first[2] then redis.call('ZADD', prefix .. 'key:w:' .. graph, first[2], key)
  else redis.call('ZREM', prefix .. 'key:w:' .. graph, key) end
end

for _ = 1, number() do
  local count, command, key = number(), take(), take()
  -- A damaged metric is left alone, and doesn't stop the commit.
  local call = key == 'metrics' and redis.pcall or redis.call
  local reply = call(command, prefix .. key, unpack(ARGV, place, place + count - 1))
  place = place + count
  if key:sub(1, 6) == 'key:q:' then list_key(key) end
  if command == 'XTRIM' and reply > 0 then
    redis.call('HINCRBYFLOAT', prefix .. 'metrics', '["runner_dead_letters_dropped_total", {}, "sum"]', reply)
  end
end
for _ = 1, number() do
  local graph, fingerprint = take(), take()
  local key = prefix .. 'g:' .. fingerprint
  local users, current = redis.call('HINCRBY', key, 'runs', -1), redis.call('HGET', prefix .. 'graphs', graph)
  local unused = users <= 0 and current ~= fingerprint
  if unused and retention > 0 then redis.call('PEXPIRE', key, retention) end
end
local task = take()
if task ~= '' then rung_by_task(task) end
for nth = 1, number() do
  bells[nth] = {take(), take(), number(), number(), take(), number(), take()}
end
local offered = {('done %.0f'):format(now)}
for _ = 1, number() do offer(take(), number(), take(), offered) end
return ring_all(table.concat(offered, '\n'))
