-- The right to write for a visit: the worker that claimed it has it, until another worker claims it.
-- `visit` and `fence` are texts; the rule is `owns` in scheduler/changes.py.
local function holds(record, visit, fence)
  local status, own_visit, own_fence = (record or ''):match('@node(status visit fence)')
  return status == 'running' and own_visit == visit and own_fence == fence
end
