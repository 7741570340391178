-- Arrivals: each edge of a settled node brings one, live or dead.
-- include: ring

-- A node's arrivals over the edges of one scope: round, arrived, live.
local function arrivals(d, scope, name)
  local field = 'a' .. scope .. ':' .. name
  local found = d.arrived[field]
  if not found then
    local json = redis.call('HGET', d.key, field)
    found = json and cjson.decode(json) or {0, 0, 0}
    d.arrived[field] = found
  end
  return found[1] == round(d, scope) and found or {round(d, scope), 0, 0}
end

local function total(d, name, loops)
  local found = arrivals(d, -1, name)
  local arrived, alive = found[2], found[3]
  for _, scope in ipairs(loops) do
    found = arrivals(d, scope, name)
    arrived, alive = arrived + found[2], alive + found[3]
  end
  return arrived, alive
end

-- Count one arrival; it may make the node ready, or skip it and so settle it.
local function arrive(d, name, scope, live, settled)
  local field, old = 'a' .. scope .. ':' .. name, arrivals(d, scope, name)
  d.arrived[field], d.came[field] = {old[1], old[2] + 1, old[3] + (live and 1 or 0)}, true
  local record = node(d, name)
  if record.status ~= 'pending' then return end
  local at = shape(d, 'n:' .. name)
  local arrived, alive = total(d, name, at.loops)
  if arrived >= at.needs and alive == 0 then
    change(d, name, {status = 'skipped'})
    announce(d, 'node.skipped', name, record.visit)
    settled[#settled + 1] = name
  elseif (live and at.join == 'any') or (arrived >= at.needs and alive > 0) then
    ready(d, name, {})
  end
end
