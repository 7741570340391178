-- What time does; a timer that no longer applies changes nothing.
-- include: follow
-- include: lost
-- include: expire
-- include: remind
-- include: unarchived
local LONGEST_RING = 300000
local DUE = {}

function DUE.drain(d)
  local names = redis.call('ZRANGE', d.key .. ':q', 0, DRAIN)
  drain(d, names)
  redis.call('ZREMRANGEBYRANK', d.key .. ':q', 0, DRAIN - 1)
end

function DUE.deadline(d)
  stop(d, 'failed', ('execution timeout of %g s reached'):format(shape(d, 'meta').timeout / 1000))
end

-- A node's timer says: ring again, try again, or its worker is gone.
function DUE.node(d, name)
  local record = node(d, name)
  if record.status == 'running' then return lost(d, name, record) end
  if record.status == 'retrying' then return ring(d, name, {}) end
  if is_out(record) then return ring(d, name, {late = record.sent}) end
  if record.status ~= 'ready' then return end
  local rings = record.rings + 1
  dispatch(d, name, change(d, name, {rings = rings}))
  timer(d, 'node', name, now + math.min(LONGEST_RING, lease * 2 ^ math.min(rings, 16)))
end

-- A map has more to begin or to cancel: it goes on as the step is closed.
function DUE.map(d, name) set_map(d, name, {}) end

function DUE.remind(d, id)
  if standing(d, id) == 'open' then remind(d, id) end
end

function DUE.expire(d, id)
  if standing(d, id) == 'open' then expire(d, id) end
end

local function due(kind, run, key)
  if kind == 'early' then
    local number, id = key:match('^(%d+) (.*)$')
    return hand_early(run, id, number)
  end
  if kind == 'archive' then return end_archive() end
  local d = open(run)
  if d and kind == 'callback' then return ring_end_again(d) end
  if not d or FINAL[d.run.status] then return end
  -- One that a newer version set is left to its workers.
  if not DUE[kind] then return redis.call('ZADD', prefix .. 'timers', now + lease, table.concat({kind, run, key}, '|')) end
  DUE[kind](d, key)
  step(d)
end
