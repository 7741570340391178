-- What reaches a node over forward edges only, all in their first round.
-- include: settings

-- The (node, visit, output) of the live edges; nil when there are other edges, or very many. Outputs are
-- asked for with the records, as if all were of first visits, which most are.
local function fast_inputs(key, json)
  local edges, names, list, seen = json and cjson.decode(json) or {}, {}, {}, {}
  if #edges > 500 then return end
  for place, edge in ipairs(edges) do
    if edge[3] ~= 'forward' then return end
    names[2 * place - 1], names[2 * place] = 'n:' .. edge[1], 'o:' .. edge[1] .. '.1'
  end
  local sources = #edges > 0 and redis.call('HMGET', key, unpack(names)) or {}
  for place, edge in ipairs(edges) do
    local visit, bits = (sources[2 * place - 1] or ''):match('^%a+ (%d+) %d+ %d+ 0 (%S+)')
    if bits and bits:byte(edge[2] + 1) == 49 and not seen[edge[1]] then
      seen[edge[1]] = true
      local output = sources[2 * place]
      if visit ~= '1' then output = redis.call('HGET', key, 'o:' .. edge[1] .. '.' .. visit) end
      list[#list + 1] = {edge[1], tonumber(visit), output or 'null'}
    end
  end
  return list
end
