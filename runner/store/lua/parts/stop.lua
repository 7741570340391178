-- A run that stops: what waits is cancelled, what runs is recorded when it ends.
-- include: questions
local DRAIN = 500

local function cancel_node(d, name)
  local record = node(d, name)
  withdraw(d, name, record.visit, record.questions)
  timer(d, 'node', name, false)
  change(d, name, {status = 'cancelled', questions = {}, unseen = 0, busy = false, held = false})
  announce(d, 'node.cancelled', name, record.visit)
end

-- Names of nodes that a stop must look at, at most one more than it takes.
local function idle_names(d)
  local seen, names, more = {}, {}, 0
  for name in pairs(d.changed) do more, seen[name] = more + 1, true end
  for _, name in ipairs(redis.call('ZRANGE', d.key .. ':q', 0, DRAIN + more)) do seen[name] = true end
  for name in pairs(seen) do
    if IDLE[node(d, name).status] then names[#names + 1] = name end
  end
  table.sort(names)
  return names
end

local function drain(d)
  local names = idle_names(d)
  for place = 1, math.min(DRAIN, #names) do
    local name = names[place]
    local record = node(d, name)
    if record.child ~= '' then
      d.follow[#d.follow + 1] = {run = record.child}
      d.idle[name] = 'told'
    end
    if not record.busy then cancel_node(d, name) end
  end
  if #names > DRAIN then timer(d, 'drain', '', now) end
end

local function stop(d, status, reason)
  if d.run.stopping ~= '' then return end
  d.run.stopping, d.run.reason = status, reason
  announce(d, 'run.stopping', '', 0, reason)
  drain(d)
end
