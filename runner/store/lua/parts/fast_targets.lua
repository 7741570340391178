-- Where the edges of a node with a fast path lead. An edge is (target, needs, join any, queue, priority).
-- include: doorbells

-- The changed fields of the targets and the edges to those that become ready; nil when one is skipped.
local function fast_targets(key, edges, bits)
  local names, fields, ready = {}, {}, {}
  for place, edge in ipairs(edges) do
    names[2 * place - 1], names[2 * place] = 'n:' .. edge[1], 'a-1:' .. edge[1]
  end
  local values = #edges > 0 and redis.call('HMGET', key, unpack(names)) or {}
  for place, edge in ipairs(edges) do
    local live = bits:byte(place) == 49
    local arrived, alive = (values[2 * place] or '[0,0,0]'):match(',(%d+),(%d+)')
    arrived, alive = arrived + 1, alive + (live and 1 or 0)
    fields[#fields + 1], fields[#fields + 2] = names[2 * place], '[0,' .. arrived .. ',' .. alive .. ']'
    local record = values[2 * place - 1]
    if record and record:find('^pending') then return end
    if not record then
      if arrived >= edge[2] and alive == 0 then return end
      if (live and edge[3]) or (arrived >= edge[2] and alive > 0) then
        fields[#fields + 1], fields[#fields + 2] = names[2 * place - 1], 'ready 1 1 0 0 - - '
        ready[#ready + 1] = edge
      end
    end
  end
  return fields, ready
end

local function make_ready(graph, ready)
  local timers = {}
  for place, edge in ipairs(ready) do
    timers[2 * place - 1], timers[2 * place] = now + lease, 'node|' .. ARGV[6] .. '|' .. edge[1]
    bells[place] = {ARGV[6], edge[1], 1, 1, edge[4], edge[5], graph}
  end
  redis.call('ZADD', prefix .. 'timers', unpack(timers))
end
