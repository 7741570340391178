-- Add to measured times. Once a day, delete those of graphs that have measured nothing for some time.
--
-- A damaged metric is left alone, and doesn't stop the others.
-- Keys touched: metrics.
-- Arguments: 6 the ms after which a graph without measurements loses its fields, then for each measurement its
--   field and what to add to it.
-- Words: none.
-- include: settings
local metrics, kept = prefix .. 'metrics', tonumber(ARGV[6])
local day, cleaned = 86400000, '["cleaned", {}, "at"]'
local last = {}

local function graph_of(field) return field:match('"graph": (".-")[,}]') end
local function note(graph)
  last[graph] = now
  redis.call('HSET', metrics, '["last", {"graph": ' .. graph .. '}, "at"]', now)
end

for place = 7, #ARGV, 2 do
  local graph = graph_of(ARGV[place])
  redis.pcall('HINCRBYFLOAT', metrics, ARGV[place], ARGV[place + 1])
  if graph and not last[graph] then note(graph) end
end
if now - (tonumber(redis.call('HGET', metrics, cleaned)) or 0) > day then
  local fields = redis.call('HGETALL', metrics)
  for place = 1, #fields, 2 do
    local graph = fields[place]:match('^%["last", .*') and graph_of(fields[place])
    if graph then last[graph] = tonumber(fields[place + 1]) end
  end
  for place = 1, #fields, 2 do
    local graph = graph_of(fields[place])
    if graph and not last[graph] then note(graph) end
    if graph and now - last[graph] > kept then redis.call('HDEL', metrics, fields[place]) end
  end
  redis.call('HSET', metrics, cleaned, now)
end
return {}
