-- End a visit: its status, its arrivals, and the run's end under fail_fast.
-- include: spread
-- include: mapping
local function finish(d, name, fields, status, edges, data)
  fields.status, fields.edges = status, status == 'completed' and edges or ''
  fields.crashes, fields.busy, fields.held = 0, false, false
  local record = change(d, name, fields)
  announce(d, status == 'completed' and 'node.completed' or 'node.failed', name, record.visit, '', data)
  local owner = map_of(name)
  if owner then return status == 'failed' and count_failure(d, owner) end
  if status == 'failed' then
    rewind(d, name)
    d.run.failed = d.run.failed + 1
    if shape(d, 'meta').policy == 'fail_fast' then stop(d, 'failed', ('node "%s" failed'):format(name)) end
  end
  if d.run.stopping == '' then spread(d, name) end
end
