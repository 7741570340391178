-- Other records for a run, worked out from its history (see runner/operations/recovery.py).
-- Arguments: failed, started; then, each after how many there are: loops (number, record), arrivals
-- (field, record), maps (name, record), nodes (name, record).
-- include: ring

-- Read a list of arguments, each item `width` of them; gives the place after it, too.
local function read_list(place, width)
  local items, count = {}, tonumber(ARGV[place])
  for item = 1, count do
    local first = place + 1 + (item - 1) * width
    items[item] = {unpack(ARGV, first, first + width - 1)}
  end
  return items, place + 1 + count * width
end

local function read_records(place)
  local records, next_one = {failed = tonumber(ARGV[place]), started = tonumber(ARGV[place + 1])}, place + 2
  records.loops, next_one = read_list(next_one, 2)
  records.arrivals, next_one = read_list(next_one, 2)
  records.maps, next_one = read_list(next_one, 2)
  records.nodes, next_one = read_list(next_one, 2)
  return records, next_one
end

-- Write them all into a run that has none, and ring for the nodes that are ready.
local function put_records(d, records)
  d.run.failed, d.run.started = records.failed, records.started
  for _, item in ipairs(records.loops) do
    d.loops[tonumber(item[1])], d.turned[tonumber(item[1])] = read_loop(item[2]), true
  end
  for _, item in ipairs(records.arrivals) do
    d.arrived[item[1]], d.came[item[1]] = cjson.decode(item[2]), true
  end
  for _, item in ipairs(records.maps) do
    d.maps[item[1]], d.moved[item[1]] = read_map(item[2]), true
  end
  local settled = {}
  for _, item in ipairs(records.nodes) do
    local name, status = item[1], item[2]:match('^%a+')
    if status == 'ready' or status == 'waiting' then
      d.nodes[name] = read_node(nil)
      if status == 'ready' then ring(d, name, read_node(item[2])) else change(d, name, read_node(item[2])) end
    else
      settled[#settled + 1], settled[#settled + 2] = 'n:' .. name, item[2]
    end
  end
  many('HSET', d.key, settled)
end
