-- What a worker gets with a claimed node.
-- include: inputs

local function answers(d, asked, visit)
  local ids = asked and cjson.decode(asked) or {0}
  if ids[1] ~= visit then return {} end
  table.remove(ids, 1)
  local questions, decisions = {}, {}
  local function read(kind, list)
    local fields = {}
    for place, id in ipairs(ids) do fields[place] = kind .. short_id(id) end
    fill(d.key, fields, function(_, text) list[#list + 1] = text end)
  end
  read('i:', questions)
  read('d:', decisions)
  return {ids, questions, decisions}
end

local function messages(d, name)
  local fields, texts = {}, {}
  local count = tonumber(redis.call('HGET', d.key .. ':m', '#' .. name) or 0)
  for place = 1, count do fields[place] = place .. '.' .. name end
  fill(d.key .. ':m', fields, function(_, message) texts[#texts + 1] = message end)
  return texts
end

-- An item gets itself where other nodes get the run's task.
local function task(d, name, visit)
  local owner, index = map_of(name), name:match('%[(%d+)%]$')
  if not owner then
    return redis.call('HGET', d.key, 't:' .. name .. '.' .. visit) or redis.call('HGET', d.key, 'task')
  end
  return redis.call('HGET', d.key .. ':f', owner .. '.' .. visit .. '.' .. index)
end

local function claimed(d, name)
  local record, shape_name = node(d, name), map_of(name) and map_of(name) .. '[]' or name
  local run = redis.call('HMGET', d.key, 'm:' .. name, 'state', 'q:' .. name, 'k:' .. name)
  local shapes = redis.call('HMGET', d.shape_key, 'n:' .. shape_name, 'i:' .. name)
  d.shapes['i:' .. shape_name] = shapes[2] and cjson.decode(shapes[2]) or {}
  return {'claimed', d.run.graph, d.run.fp, shapes[1], write_node(record), task(d, name, record.visit), run[2],
    inputs(d, name, record), answers(d, run[3], record.visit), run[4] ~= '1' and run[4], messages(d, name), run[1],
    record.handed ~= '' and redis.call('HGET', d.key, 'h:' .. record.handed)}
end
