-- The nodes that are cancelled when a run stops.
-- include: change
local IDLE = {ready = true, retrying = true, waiting = true}

-- Name the run's nodes that are ready, retrying or waiting. It looks at all of them: once, when a run
-- stops, so that no other step has to keep a list.
local function idle_names(d)
  local fields, names = {}, {}
  for name in pairs(d.changed) do
    if IDLE[d.nodes[name].status] then names[#names + 1] = name end
  end
  for _, field in ipairs(redis.call('HKEYS', d.key)) do
    if field:sub(1, 2) == 'n:' and not d.changed[field:sub(3)] then fields[#fields + 1] = field end
  end
  fill(d.key, fields, function(field, text)
    if IDLE[text:match('^%a+')] then names[#names + 1] = field:sub(3) end
  end)
  table.sort(names)
  return names
end
