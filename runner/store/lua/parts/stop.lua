-- A run that stops: what waits is cancelled, what runs is recorded when it ends.
-- include: questions
-- include: idle
-- include: handed
local DRAIN = 500

local function cancel_node(d, name)
  local record = node(d, name)
  withdraw(d, name, record.visit, record.questions)
  timer(d, 'node', name, false)
  change(d, name, {status = 'cancelled', questions = {}, unseen = 0, busy = false, held = false, items = false})
  announce(d, 'node.cancelled', name, record.visit)
end

-- Cancel an idle node; one whose child run is at work is cancelled when that has ended.
local function cancel_idle(d, name)
  local record = node(d, name)
  if record.child ~= '' then d.follow[#d.follow + 1] = {run = record.child} end
  local out = is_out(record)
  -- Whoever hears it tells the other system, if it can: see claim.lua.
  if out then dispatch(d, name, record) end
  if record.items or out or not record.busy then cancel_node(d, name) end
end

-- Cancel the first of some nodes; those that one step doesn't get to are kept in r:<run>:q.
local function drain(d, names)
  for place = 1, math.min(DRAIN, #names) do
    local name = names[place]
    if IDLE[node(d, name).status] then cancel_idle(d, name) end
  end
  if #names > DRAIN then timer(d, 'drain', '', now) end
end

local function stop(d, status, reason)
  if d.run.stopping ~= '' then return end
  d.run.stopping, d.run.reason = status, reason
  announce(d, 'run.stopping', '', 0, reason)
  local names, later = idle_names(d), {}
  drain(d, names)
  for place = DRAIN + 1, #names do later[#later + 1], later[#later + 2] = 0, names[place] end
  many('ZADD', d.key .. ':q', later)
end
