-- A question got its answer, or its time is over: the node goes on when its rule is satisfied.
-- include: ring
local function satisfied(d, name, unseen, left)
  return unseen > 0 and (#left == 0 or shape(d, 'n:' .. name).each)
end

local function resolve(d, name, visit, ids, wakes)
  local record, gone, left = node(d, name), {}, {}
  for _, id in ipairs(ids) do
    gone[id] = true
    quiet(d, id)
  end
  for _, id in ipairs(record.questions) do
    if not gone[id] then left[#left + 1] = id end
  end
  local fields = {questions = left, unseen = record.unseen + #record.questions - #left}
  local waits = record.status == 'waiting' and not record.held and not record.items
  if waits and (wakes or satisfied(d, name, fields.unseen, left)) then
    announce(d, 'node.resumed', name, visit)
    ring(d, name, fields)
  else
    change(d, name, fields)
  end
end
