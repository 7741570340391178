-- Write everything that a transition changed, and remember its doorbells and what follows.
-- include: events
-- include: doorbells
local follow = {}

local function write_records(d)
  local fields, run = {}, d.run
  local function put(field, value) fields[#fields + 1], fields[#fields + 2] = field, value end
  for name in pairs(d.changed) do put('n:' .. name, write_node(d.nodes[name])) end
  for number in pairs(d.turned) do
    local turned = d.loops[number]
    put('c:' .. number, '[' .. turned.round .. ',' .. turned.settled .. ',0]')
    local said = write(with(turned, {settled = 0}))
    put('l:' .. number, said ~= '' and said or '{}')
  end
  for name in pairs(d.moved) do put('m:' .. name, write_map(d.maps[name])) end
  for field in pairs(d.came) do put(field, cjson.encode(d.arrived[field])) end
  local said = write_run(run)
  if said ~= d.was then put('run', said) end
  if run.lock ~= d.had_lock then put('lock', run.lock) end
  if run.reason then put('reason', run.reason) end
  many('HSET', d.key, fields)
end

local function write_timers(d)
  local set, drop = {}, {}
  for member, at in pairs(d.timers) do
    if at then set[#set + 1], set[#set + 2] = at, member else drop[#drop + 1] = member end
  end
  many('ZADD', prefix .. 'timers', set)
  many('ZREM', prefix .. 'timers', drop)
end

local function commit(d)
  write_events(d)
  write_closed(d)
  write_records(d)
  write_timers(d)
  for _, bell in ipairs(d.bells) do bells[#bells + 1] = bell end
  for _, item in ipairs(d.follow) do follow[#follow + 1] = item end
end
