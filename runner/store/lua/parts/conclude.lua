-- A question's time is over and its node ends with it: it fails, or takes the edges for this case.
-- include: finish
-- include: handed
-- include: result

-- What time does to a question, a line each: when it reminds; "fail" or "route", where it ends its node;
-- then the entry and its payload, or the node that is next and the output.
local function by_time(d, id)
  local reminds, rest = (redis.call('HGET', d.key, 'w:' .. id) or '\n'):match('^([^\n]*)\n(.*)$')
  local kind, one, other = rest:match('^(%a+)\n([^\n]*)\n(.*)$')
  return reminds, kind, one, other
end

-- Whether a node is being worked for: by a worker, a child run, its items or another system.
local function at_work(record)
  return record.status == 'running' or record.items or record.busy
end

local function conclude(d, name, id, kind, one, other)
  local record, others, bits = node(d, name), {}, ''
  for _, question in ipairs(record.questions) do
    if question ~= id then others[#others + 1] = question end
  end
  withdraw(d, name, record.visit, others)
  quiet(d, id)
  timer(d, 'node', name, false)
  local visit_id, ended = name .. '.' .. record.visit, {questions = {}, unseen = 0}
  if stops(d, name) then
    change(d, name, ended)
    return cancel_node(d, name)
  end
  -- Its doorbell is stale for the worker that gets it, and shows monitors how the node ended.
  dispatch(d, name, record)
  if kind == 'fail' then
    leave_result(d, visit_id, 'failed', '', one)
    return finish(d, name, ended, 'failed', '', other)
  end
  for _, edge in ipairs(shape(d, 'o:' .. name)) do bits = bits .. ((edge[5] and edge[1] == one) and '1' or '0') end
  grow(d.root, #other)
  leave_result(d, visit_id, 'completed', other, cjson.encode({v = 1, ms = 0, edges = bits, expired = id}))
  finish(d, name, ended, 'completed', bits, short_output(other))
end
