-- The graph's shape, one field a time: n:<node>, o:<node> edges out, i:<node> edges in, l:<loop>.
-- The items of a map M have one entry, n:M[].
-- include: maps
local function shape(d, field)
  if field:byte(-1) == 93 then field = field:gsub('%d+%]$', ']') end
  local value = d.shapes[field]
  if not value then
    local json = redis.call('HGET', d.shape_key, field)
    value = json and cjson.decode(json) or {}
    d.shapes[field] = value
  end
  return value
end

-- Read any number of fields of a hash; `take` gets each with its value.
local function fill(key, fields, take)
  for first = 1, #fields, 1000 do
    local last = math.min(first + 999, #fields)
    for place, value in ipairs(redis.call('HMGET', key, unpack(fields, first, last))) do
      take(fields[first + place - 1], value)
    end
  end
end

-- Read the targets of edges in two calls, however many they are.
local function load(d, edges)
  local shapes, records = {}, {}
  for _, edge in ipairs(edges) do
    local name = edge[1]
    if not d.shapes['n:' .. name] then shapes[#shapes + 1] = 'n:' .. name end
    if not d.nodes[name] then records[#records + 1] = 'n:' .. name end
    if not d.arrived['a-1:' .. name] then records[#records + 1] = 'a-1:' .. name end
  end
  fill(d.shape_key, shapes, function(field, json) d.shapes[field] = cjson.decode(json) end)
  fill(d.key, records, function(field, json)
    if field:sub(1, 2) == 'n:' then
      d.nodes[field:sub(3)] = read_node(json)
    else
      d.arrived[field] = json and cjson.decode(json) or {0, 0, 0}
    end
  end)
end
