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
  -- Whoever hears it tells the other system, if it can: see `scheduler.claim`.
  if out then dispatch(d, name, record) end
  if record.items or out or not record.busy then cancel_node(d, name) end
end

local function stop(d, status, reason)
  if d.run.stopping ~= '' then return end
  d.run.stopping, d.run.reason = status, reason
  announce(d, 'run.stopping', '', 0, reason)
  local names = idle_names(d)
  for place = 1, math.min(DRAIN, #names) do cancel_idle(d, names[place]) end
  -- A timer cancels the rest: see scheduler/shared.py.
  if #names > DRAIN then timer(d, 'drain', '', now) end
end
