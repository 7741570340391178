-- Making a node ready, and ringing for it.
-- include: stop
-- When a doorbell is rung again: at the next sweep where no worker has left a template to ring with.
local function ring_again()
  local unheard = push and redis.call('EXISTS', prefix .. 'doorbell:1') == 0
  return unheard and now or now + lease
end

-- Write a ready node and ring its doorbell; the timer rings again should it be lost.
local function ring(d, name, fields)
  fields.status, fields.rings, fields.busy, fields.held, fields.items = 'ready', 0, false, false, false
  if fields.attempt == 1 then fields.uncounted = 0 end
  dispatch(d, name, change(d, name, fields))
  timer(d, 'node', name, ring_again())
end

-- Make a node ready for a new visit, unless the run stops or has used up its executions.
local function ready(d, name, via)
  if d.run.stopping ~= '' then return end
  local limit = shape(d, 'meta').limit
  if limit > 0 and d.run.started >= limit then
    stop(d, 'failed', ('max_node_executions (%d) reached before "%s"'):format(limit, name))
    return
  end
  d.run.started = d.run.started + 1
  ring(d, name, {visit = node(d, name).visit + 1, attempt = 1, via = via, edges = ''})
end
