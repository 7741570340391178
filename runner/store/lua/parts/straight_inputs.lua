-- What reaches a node over forward edges only, all in their first round.
-- include: settings

-- The (node, visit, output) of the live edges; nil when there are other edges, or very many.
local function straight_inputs(key, json)
  local edges, asked, found, seen, outputs = json and cjson.decode(json) or {}, {}, {}, {}, {}
  if #edges > 500 then return end
  for place, edge in ipairs(edges) do
    if edge[3] ~= 'forward' then return end
    asked[place] = 'n:' .. edge[1]
  end
  local sources = #edges > 0 and redis.call('HMGET', key, unpack(asked)) or {}
  for place, edge in ipairs(edges) do
    local visit, bits = (sources[place] or ''):match('^%a+ (%d+) %d+ %d+ 0 (%S+)')
    if bits and bits:byte(edge[2] + 1) == 49 and not seen[edge[1]] then
      seen[edge[1]] = true
      found[#found + 1] = {edge[1], tonumber(visit)}
      outputs[#found] = 'o:' .. edge[1] .. '.' .. visit
    end
  end
  local values = #found > 0 and redis.call('HMGET', key, unpack(outputs)) or {}
  for place, item in ipairs(found) do item[3] = values[place] or 'null' end
  return found
end
