-- Close a transition: continue maps, work out the run's status, tell its parent, write.
-- include: commit
-- include: ended
-- include: mapping
-- include: telling
local function status_of(run)
  if run.active > 0 then return 'executing' end
  if run.held > 0 then return 'needs_migration' end
  if run.waiting > 0 then return 'interrupted' end
  if run.failed > 0 or run.stopping == 'failed' then return 'failed' end
  return run.stopping ~= '' and 'cancelled' or 'completed'
end

-- A run that would end fires the event after it first, where it has one.
local function before_end(d)
  if not FINAL[status_of(d.run)] then return end
  local last = shape(d, 'meta').after and node(d, '@after')
  if last and last.status == 'pending' then ring(d, '@after', {visit = last.visit + 1, attempt = 1}) end
end

local function step(d)
  move_maps(d)
  before_end(d)
  local run = d.run
  local before, status = run.status, status_of(run)
  if status ~= before then
    run.status = status
    announce(d, FINAL[status] and 'run.ended' or 'run.status', '', 0, status)
    if FINAL[status] and shape(d, 'meta').timeout > 0 then timer(d, 'deadline', '', false) end
    if FINAL[status] then note_end(d) end
    if run.parent ~= '' then
      local name = redis.call('HGET', d.key, 'parent_node')
      d.follow[#d.follow + 1] = {run = run.parent, node = name, child = d.id, status = status}
    end
  end
  commit(d)
  if status ~= before then index_status(d, before, status) end
end
