-- The outputs that reach a visit.
-- include: change

-- The (node, visit) whose outputs reach this visit, in edge order, each once.
local function live_inputs(d, name, record)
  local edges, list, seen, sources = shape(d, 'i:' .. name), {}, {}, {}
  local function add_input(source, visit)
    local field = source .. '.' .. visit
    if not seen[field] then list[#list + 1], seen[field] = {source, visit, field}, true end
  end
  for _, edge in ipairs(edges) do
    if not d.nodes[edge[1]] then sources[#sources + 1] = 'n:' .. edge[1] end
  end
  fill(d.key, sources, function(field, json) d.nodes[field:sub(3)] = read_node(json) end)
  for _, edge in ipairs(edges) do
    local source, place, kind = edge[1], edge[2], edge[3]
    if kind == 'back' then
      for _, pair in ipairs(record.via) do if pair[1] == source then add_input(source, pair[2]) end end
    elseif kind == 'exit' then
      for _, exit in ipairs(loop(d, edge[4]).taken) do
        if exit[1] == source and exit[2] == place then add_input(source, exit[3]) end
      end
    elseif node(d, source).edges:sub(place + 1, place + 1) == '1' then
      add_input(source, node(d, source).visit)
    end
  end
  return list
end

local function inputs(d, name, record)
  local fields, by_field, list = {}, {}, live_inputs(d, name, record)
  for place, item in ipairs(list) do fields[place], by_field['o:' .. item[3]] = 'o:' .. item[3], item end
  fill(d.key, fields, function(field, output) by_field[field][3] = output or 'null' end)
  return list
end
