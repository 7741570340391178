-- Maps: item 3 of the map M is the node M[3]; the record of a map's items is the field m:<map>, as the
-- numbers "visit total next active waiting failed stopped swept". See MapRecord in run.py.
-- include: draft
local MAP = {'visit', 'total', 'next', 'active', 'waiting', 'failed', 'stopped', 'swept'}

-- The map that an item belongs to; nil for a node that is no item.
local function map_of(name)
  return name:byte(-1) == 93 and name:match('^(.*)%[%d+%]$') or nil
end

local function read_map(text)
  local record, numbers = {}, (text or '0 0 0 0 0 0 0 0'):gmatch('%d+')
  for _, field in ipairs(MAP) do record[field] = tonumber(numbers()) end
  return record
end

local function map(d, name)
  local record = d.maps[name] or read_map(redis.call('HGET', d.key, 'm:' .. name))
  d.maps[name] = record
  return record
end

local function write_map(record)
  local numbers = {}
  for place, field in ipairs(MAP) do numbers[place] = record[field] end
  return table.concat(numbers, ' ')
end

local function set_map(d, name, fields)
  d.maps[name], d.moved[name] = with(map(d, name), fields), true
end

-- Whether a node must not go on: its run stops, or its map does.
local function stops(d, name)
  local owner = map_of(name)
  return d.run.stopping ~= '' or (owner and map(d, owner).stopped == 1)
end
