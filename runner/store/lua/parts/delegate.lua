-- A running node waits for the child run that does its work, and for nothing else: a question that
-- it left open is withdrawn, for an answer would wake the node beside its child.
-- include: ownership
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
    withdraw(d, name, visit, record.questions)
    change(d, name, {status = 'waiting', questions = {}, child = child, busy = true, crashes = 0})
  end
  step(d)
  return word
end
