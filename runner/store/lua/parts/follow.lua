-- What a step means for other runs, one after another: parents, children, those that wait for a place.
-- include: step
-- include: places
local function cancel(d, reason)
  if FINAL[d.run.status] or d.run.stopping ~= '' then return 'already' end
  stop(d, 'cancelled', reason)
  step(d)
  return 'cancelled'
end

-- Follow a child run: its pause is the node's pause, its end makes the node ready.
local function child_moved(d, name, child, status)
  local record = node(d, name)
  if record.child ~= child or record.status ~= 'waiting' then return end
  if not FINAL[status] then
    change(d, name, {busy = status == 'executing', held = status == 'needs_migration'})
  elseif stops(d, name) then
    cancel_node(d, name)
  else
    ring(d, name, {})
  end
  step(d)
end

local function follow_all()
  local place = 1
  while follow[place] do
    local item = follow[place]
    local d = item.run and open(item.run, item.node)
    if item.leaves then
      leave_places(item.of, item.leaves, item.first or 1)
    elseif item.passes then
      pass_on(item.passes, item.concurrency)
    elseif d and item.child then
      child_moved(d, item.node, item.child, item.status)
    elseif d then
      cancel(d, 'its parent run stops')
    end
    place = place + 1
  end
  follow = {}
end
