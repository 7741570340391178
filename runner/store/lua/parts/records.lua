-- Records as small JSON objects without their defaults: cjson would write an empty list as {}.
-- Text inside is ours (ids, words); what users store never passes through here.
local NODE = {__index = {
  status = 'pending', visit = 0, attempt = 0, fence = 0, stamp = 0, crashes = 0, uncounted = 0, edges = '',
  via = {}, questions = {}, unseen = 0, child = '', busy = false, held = false, nonce = '',
  rings = 0, scope = -1, items = false, since = 0, granted = false,
  handed = '', sent = false, late = false,
}}
local LOOP = {__index = {round = 0, settled = 0, asked = {}, taken = {}}}

-- A node is written as "status visit attempt fence stamp edges nonce rest", with "-" for an empty text
-- and the rest as an object, or nothing: most nodes have no more, and this is read most quickly.
local function read_node(text)
  if not text then return setmetatable({}, NODE) end
  local status, visit, attempt, fence, stamp, edges, nonce, rest =
    text:match('^(%a+) (%d+) (%d+) (%d+) (%d+) (%S+) (%S+) (.*)$')
  local record = rest ~= '' and cjson.decode(rest) or {}
  record.status, record.visit, record.attempt = status, tonumber(visit), tonumber(attempt)
  record.fence, record.stamp = tonumber(fence), tonumber(stamp)
  record.edges, record.nonce = edges ~= '-' and edges or '', nonce ~= '-' and nonce or ''
  return setmetatable(record, NODE)
end

local function read_loop(json)
  return setmetatable(json and cjson.decode(json) or {}, LOOP)
end

local FIXED = {status = true, visit = true, attempt = true, fence = true, stamp = true, edges = true, nonce = true}

local function write(record)
  local default, rest = getmetatable(record).__index, {}
  for name, value in pairs(record) do
    local unlike = value ~= default[name] and (type(value) ~= 'table' or #value > 0)
    if unlike and not FIXED[name] then rest[name] = value end
  end
  return next(rest) and cjson.encode(rest) or ''
end

local function write_node(record)
  local edges, nonce = record.edges ~= '' and record.edges or '-', record.nonce ~= '' and record.nonce or '-'
  return table.concat({record.status, record.visit, record.attempt, record.fence, record.stamp, edges, nonce,
    write(record)}, ' ')
end
