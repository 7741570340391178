-- A run's status changed: its index, and when it ended, how long its keys stay.
-- include: settings
-- include: indexes
local FINAL = {completed = true, failed = true, cancelled = true}
local KEYS_OF_RUN = {'', ':m', ':e', ':c', ':f', ':b'}

-- What is left of a run in `retired` when its keys are gone, to find its listings: id, status, graph and tags.
local function retired(run)
  local record, of, tags = unpack(redis.call('HMGET', prefix .. 'r:' .. run, 'run', 'of', 'tags'))
  if not record then return run end
  return table.concat({run, record:match('^%S+'), of:match('^%S+ %S+ (.*)$'), tags or ''}, '\n')
end

-- Set the expiry of a finished run's keys, and of its children's when the sweep gets to them.
local function retire(run)
  local key = prefix .. 'r:' .. run
  if retention == 0 then return end
  for _, suffix in ipairs(KEYS_OF_RUN) do redis.call('PEXPIRE', key .. suffix, retention) end
  local idem = redis.call('HGET', key, 'idem')
  if idem then redis.call('PEXPIRE', idem, retention) end
  redis.call('ZADD', prefix .. 'retired', now + retention, retired(run))
  many('RPUSH', prefix .. 'retiring', redis.call('LRANGE', key .. ':c', 0, -1))
end

-- Where there is an archive, the expiry of a run begins when the archive has it, with all runs inside it.
local function await_archive(run)
  if redis.call('EXISTS', prefix .. 'archive') == 0 then return false end
  return redis.call('ZADD', prefix .. 'unarchived', now, run)
end

-- A child stays as long as its parent, which may still read it.
local function outlived(parent)
  return parent == '' or FINAL[(redis.call('HGET', prefix .. 'r:' .. parent, 'run') or 'completed'):match('^%S+')]
end

-- The last run of a graph that is no longer current makes its shape expire.
local function release(d)
  local users = redis.call('HINCRBY', d.shape_key, 'runs', -1)
  local current = redis.call('HGET', prefix .. 'graphs', d.run.graph)
  if users <= 0 and current ~= d.run.fp and retention > 0 then
    redis.call('PEXPIRE', d.shape_key, retention)
  end
end

-- A run that has ended and has reported it where it must is no longer in use.
local function end_use(d)
  release(d)
  if outlived(d.run.parent) and not (d.run.parent == '' and await_archive(d.id)) then retire(d.id) end
end

local function index_status(d, before, status)
  local created = redis.call('HGET', d.key, 'created')
  redis.call('ZREM', prefix .. 'runs:' .. before .. ':' .. d.run.graph, d.id)
  list_run(d.id, status, d.run.graph, created)
  if not FINAL[status] then return end
  redis.call('HSET', d.key, 'ended', now)
  if redis.call('HEXISTS', d.key, 'unreported') == 0 then end_use(d) end
end
