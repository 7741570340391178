-- Records as small JSON objects without their defaults: cjson would write an empty list as {}.
-- Text inside is ours (ids, words); what users store never passes through here.
local NODE = {__index = {
  status = 'pending', visit = 0, attempt = 0, fence = 0, stamp = 0, crashes = 0, edges = '',
  via = {}, questions = {}, unseen = 0, child = '', busy = false, held = false, nonce = '',
  rings = 0, scope = -1,
}}
local LOOP = {__index = {round = 0, settled = 0, asked = {}, taken = {}}}

local function read(json, kind)
  return setmetatable(json and cjson.decode(json) or {}, kind)
end

-- Copy a record with some fields changed; records themselves are never changed.
local function with(record, fields)
  local copy = setmetatable({}, getmetatable(record))
  for name, value in pairs(record) do copy[name] = value end
  for name, value in pairs(fields) do copy[name] = value end
  return copy
end

local function write(record)
  local default, said = getmetatable(record).__index, {}
  for name, value in pairs(record) do
    if value ~= default[name] and (type(value) ~= 'table' or #value > 0) then said[name] = value end
  end
  return cjson.encode(said)
end

local function append(list, item)
  local longer = {}
  for place, each in ipairs(list) do longer[place] = each end
  longer[#longer + 1] = item
  return longer
end
