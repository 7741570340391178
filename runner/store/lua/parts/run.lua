-- A run's own state is the field `run`: "status active waiting held failed started events stopping", with
-- "-" for not stopping; what it is of is the field `of`: "fingerprint parent graph", with "-" for none.
-- include: settings
local COUNTERS = '^(%S+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+)$'

local function read_run(text, of, lock)
  local status, active, waiting, held, failed, started, events, stopping = text:match(COUNTERS)
  local fp, parent, graph = of:match('^(%S+) (%S+) (.*)$')
  return {status = status, active = tonumber(active), waiting = tonumber(waiting), held = tonumber(held),
    failed = tonumber(failed), started = tonumber(started), events = tonumber(events),
    stopping = stopping ~= '-' and stopping or '', lock = lock or '',
    fp = fp, parent = parent ~= '-' and parent or '', graph = graph}
end

local function write_run(run)
  return table.concat({run.status, run.active, run.waiting, run.held, run.failed, run.started, run.events,
    run.stopping ~= '' and run.stopping or '-'}, ' ')
end
