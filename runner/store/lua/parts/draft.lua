-- What one transition of one run has read and changed so far; `commit` writes it.
-- include: settings
-- include: records
-- include: copies
-- include: run
-- Read a run and one of its nodes; nil when there is no such run.
local function open(run, name)
  local key = prefix .. 'r:' .. run
  local found = redis.call('HMGET', key, 'run', 'of', 'lock', 'n:' .. (name or ''), 'root')
  if not found[1] then return nil end
  local d = {id = run, key = key, root = found[5], was = found[1], run = read_run(found[1], found[2], found[3]),
    had_lock = found[3] or '', nodes = {}, loops = {}, arrived = {}, shapes = {}, changed = {},
    turned = {}, came = {}, maps = {}, moved = {}, timers = {}, events = {}, closed = {}, bells = {}, follow = {}}
  d.shape_key = prefix .. 'g:' .. d.run.fp
  if name then d.nodes[name] = read_node(found[4]) end
  return d
end

local function loop(d, number)
  local found = d.loops[number]
  if not found then
    local texts = redis.call('HMGET', d.key, 'l:' .. number, 'c:' .. number)
    found = read_loop(texts[1])
    local round, settled = (texts[2] or ''):match('^%[(%d+),(%d+)')
    if tonumber(round) == found.round then found.settled = tonumber(settled) end
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
    found = read_node(redis.call('HGET', d.key, 'n:' .. name))
    d.nodes[name] = found
  end
  local stamp = round(d, found.scope)
  if found.stamp == stamp then return found end
  return with(read_node(nil), {visit = found.visit, fence = found.fence, nonce = found.nonce,
    scope = found.scope, stamp = stamp})
end
