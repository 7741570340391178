-- Changing records: the run's counters stay in step with its nodes.
-- include: shape
local ACTIVE = {ready = true, running = true, retrying = true}

-- What a node adds to the counters: active, waiting, held.
local function weight(record)
  local waits = record.status == 'waiting'
  local active = ACTIVE[record.status] or (waits and record.busy)
  return active and 1 or 0, (waits and not record.busy and not record.held) and 1 or 0,
    record.held and 1 or 0
end

local function change(d, name, fields)
  local old = node(d, name)
  local new, run = with(old, fields), d.run
  if next(old) == nil then new.scope = shape(d, 'n:' .. name).loops[1] or -1 end
  new.stamp = round(d, new.scope)
  local active, waiting, held = weight(new)
  local less_active, less_waiting, less_held = weight(old)
  run.active = run.active + active - less_active
  run.waiting = run.waiting + waiting - less_waiting
  run.held = run.held + held - less_held
  local stays = new.status == 'running' or (old.status == 'ready' and new.status == 'ready')
  if old.since > 0 and not stays then
    new.since, d.follow[#d.follow + 1] = 0, {leaves = name, of = d}
  end
  d.nodes[name], d.changed[name] = new, true
  local owner, moved = map_of(name), waiting - less_waiting + held - less_held
  if owner and (active ~= less_active or moved ~= 0) then
    local items = map(d, owner)
    set_map(d, owner, {active = items.active + active - less_active, waiting = items.waiting + moved})
  end
  return new
end

local function set_loop(d, number, fields)
  d.loops[number] = with(loop(d, number), fields)
  d.turned[number] = true
end

local function timer(d, kind, key, due)
  d.timers[kind .. '|' .. d.id .. '|' .. key] = due
end

local function announce(d, kind, name, visit, detail, data)
  d.events[#d.events + 1] =
    {kind = kind, node = name or '', visit = visit or 0, detail = detail or '', data = data}
end
