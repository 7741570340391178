-- Let a running node wait for the child run that does its work.
-- include: held
-- include: step
-- include: stop
local function delegate(run, name, visit, fence, child)
  local d = open(run, name)
  if not d then return 'stale' end
  local record, word = node(d, name), 'delegated'
  if record.status == 'waiting' and record.child == child then return word end
  if not holds(record, visit, fence) then return 'stale' end
  timer(d, 'node', name, false)
  if stops(d, name) then
    cancel_node(d, name)
    word = 'cancelled'
  else
    change(d, name, {status = 'waiting', child = child, busy = true, crashes = 0})
  end
  step(d)
  return word
end
