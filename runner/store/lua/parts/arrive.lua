-- Arrivals: each edge of a settled node brings one, live or dead.
-- include: ring

-- A node's arrivals over the edges of one scope: round, arrived, live.
local function arrivals(d, scope, name)
  local field = 'a' .. scope .. ':' .. name
  local counts = d.arrived[field]
  if not counts then
    local json = redis.call('HGET', d.key, field)
    counts = json and cjson.decode(json) or {0, 0, 0}
    d.arrived[field] = counts
  end
  return counts[1] == round(d, scope) and counts or {round(d, scope), 0, 0}
end

local function total(d, name, loops)
  local counts = arrivals(d, -1, name)
  local arrived, alive = counts[2], counts[3]
  for _, scope in ipairs(loops) do
    counts = arrivals(d, scope, name)
    arrived, alive = arrived + counts[2], alive + counts[3]
  end
  return arrived, alive
end

-- Count one arrival; it may make the node ready, or skip it and so settle it.
local function arrive(d, name, scope, live, settled)
  local record, node_shape = node(d, name), shape(d, 'n:' .. name)
  -- Of a single arrival no count is kept: nothing comes that it would be added to.
  local arrived, alive = 1, live and 1 or 0
  if node_shape.needs ~= 1 then
    local field, old = 'a' .. scope .. ':' .. name, arrivals(d, scope, name)
    d.arrived[field], d.came[field] = {old[1], old[2] + 1, old[3] + alive}, true
    arrived, alive = total(d, name, node_shape.loops)
  end
  if record.status ~= 'pending' then return end
  if arrived >= node_shape.needs and alive == 0 then
    change(d, name, {status = 'skipped'})
    announce(d, 'node.skipped', name, record.visit)
    settled[#settled + 1] = name
  elseif (live and node_shape.join == 'any') or (arrived >= node_shape.needs and alive > 0) then
    ready(d, name, {})
  end
end
