-- What one transition of one run has read and changed so far; `commit` writes it.
-- include: settings
-- include: records
-- include: copies
-- include: run
-- Read a run and one of its nodes; nil when there is no such run.
local function open(run, name)
  local key = prefix .. 'r:' .. run
  local fields = redis.call('HMGET', key, 'run', 'of', 'lock', 'n:' .. (name or ''), 'root')
  if not fields[1] then return nil end
  local d = {id = run, key = key, root = fields[5] or run, was = fields[1], run = read_run(fields[1], fields[2], fields[3]),
    had_lock = fields[3] or '', nodes = {}, loops = {}, arrived = {}, shapes = {}, changed = {},
    turned = {}, came = {}, maps = {}, moved = {}, timers = {}, events = {}, closed = {}, bells = {}, follow = {}}
  d.shape_key = prefix .. 'g:' .. d.run.fp
  if name then d.nodes[name] = read_node(fields[4]) end
  return d
end

local function loop(d, number)
  local record = d.loops[number]
  if not record then
    record = read_loop(redis.call('HGET', d.key, 'l:' .. number))
    d.loops[number] = record
  end
  return record
end

-- The number that marks what belongs to the present round of a scope.
local function round(d, scope)
  return scope == -1 and 0 or loop(d, scope).round
end

-- A node as it stands in this round: settled in an older one means pending.
local function node(d, name)
  local record = d.nodes[name]
  if not record then
    record = read_node(redis.call('HGET', d.key, 'n:' .. name))
    d.nodes[name] = record
  end
  local stamp = round(d, record.scope)
  if record.stamp == stamp then return record end
  return with(read_node(nil), {visit = record.visit, fence = record.fence, nonce = record.nonce,
    scope = record.scope, stamp = stamp})
end
