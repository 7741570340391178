-- What a worker is given with a claimed node.
-- include: inputs

local function answers(d, asked, visit)
  local said = asked and cjson.decode(asked) or {0}
  if said[1] ~= visit then return {} end
  table.remove(said, 1)
  local questions, decisions = {}, {}
  fill(d.key .. ':i', said, function(_, found) questions[#questions + 1] = found end)
  fill(d.key .. ':d', said, function(_, found) decisions[#decisions + 1] = found end)
  return {questions, decisions}
end

local function messages(d, name)
  local fields, found = {}, {}
  local count = tonumber(redis.call('HGET', d.key .. ':m', '#' .. name) or 0)
  for place = 1, count do fields[place] = place .. '.' .. name end
  fill(d.key .. ':m', fields, function(_, message) found[#found + 1] = message end)
  return found
end

local function claimed(d, name)
  local record = node(d, name)
  local run = redis.call('HMGET', d.key, 'task', 'given', 'q:' .. name)
  local shapes = redis.call('HMGET', d.shape_key, 'n:' .. name, 'i:' .. name)
  d.shapes['i:' .. name] = shapes[2] and cjson.decode(shapes[2]) or {}
  return {'claimed', d.run.graph, d.run.fp, redis.call('HGET', prefix .. 'graphs', d.run.graph) or '',
    shapes[1], write_node(record), run[1], run[2], inputs(d, name, record),
    answers(d, run[3], record.visit), redis.call('HGET', d.key .. ':s', name), messages(d, name)}
end
