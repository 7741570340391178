-- Records and lists are never changed, only copied.
-- Copy a record with some fields changed; records themselves are never changed.
local function with(record, fields)
  local copy = setmetatable({}, getmetatable(record))
  for name, value in pairs(record) do copy[name] = value end
  for name, value in pairs(fields) do copy[name] = value end
  return copy
end

local function append(list, item)
  local longer = {}
  for place, item in ipairs(list) do longer[place] = item end
  longer[#longer + 1] = item
  return longer
end
