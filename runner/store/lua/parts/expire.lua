-- A question expires: its node continues and gets that as the question's result, or ends with it.
-- include: conclude
-- include: resolve
local function expire(d, id)
  local name, visit = id:match('^[^.]+%.(.*)%.(%d+)%.[^.]*$')
  local _, kind, one, other = by_time(d, id)
  local record = node(d, name)
  -- A running node may finish its work. No answer is accepted meanwhile; it ends when it waits.
  if kind and at_work(record) then return timer(d, 'expire', id, now + lease) end
  d.closed[id] = 'expired'
  announce(d, 'interrupt.expired', name, visit, id)
  if kind and record.visit == tonumber(visit) and IDLE[record.status] then
    return conclude(d, name, id, kind, one, other)
  end
  resolve(d, name, visit, {id})
end
