-- What one transition of one run has read and changed so far; `commit` writes it.
-- include: settings
-- include: records
local RUN = {'fp', 'status', 'stopping', 'reason', 'lock', 'graph', 'parent', 'parent_node',
  'active', 'waiting', 'held', 'failed', 'started', 'events'}
local TEXTS = 8

-- Read a run and one of its nodes; nil when there is no such run.
local function open(run, name)
  local key = prefix .. 'r:' .. run
  local found = redis.call('HMGET', key, 'n:' .. (name or ''), unpack(RUN))
  if not found[2] then return nil end
  local d = {id = run, key = key, shape_key = prefix .. 'g:' .. found[2], run = {}, was = {},
    nodes = {}, loops = {}, arrived = {}, shapes = {}, idle = {}, changed = {}, turned = {},
    came = {}, timers = {}, events = {}, closed = {}, bells = {}, follow = {}}
  for place, field in ipairs(RUN) do
    local value = found[place + 1] or ''
    if place > TEXTS then value = tonumber(value) or 0 end
    d.run[field], d.was[field] = value, value
  end
  if name then d.nodes[name] = read(found[1], NODE) end
  return d
end

local function loop(d, number)
  local found = d.loops[number]
  if not found then
    found = read(redis.call('HGET', d.key, 'l:' .. number), LOOP)
    d.loops[number] = found
  end
  return found
end

-- The number that marks what belongs to the present round of a scope.
local function round(d, scope)
  return scope == -1 and 0 or loop(d, scope).round
end

-- A node as it stands in this round: settled in an older one means pending.
local function node(d, name)
  local found = d.nodes[name]
  if not found then
    found = read(redis.call('HGET', d.key, 'n:' .. name), NODE)
    d.nodes[name] = found
  end
  local stamp = round(d, found.scope)
  if found.stamp == stamp then return found end
  return with(read(nil, NODE), {visit = found.visit, fence = found.fence, nonce = found.nonce,
    scope = found.scope, stamp = stamp})
end
