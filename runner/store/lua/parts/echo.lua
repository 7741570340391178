-- Writing an event: lines with kind, at, visit, node, data (JSON) and detail, the last of which may have more. The
-- kinds that most runs have are written as letters: see EVENT_LETTERS in runner/store/encoding.py.
-- include: settings
-- The newest so many stay; older ones go some hundred at a time.
local EVENTS, SPARE, woken = 10000, 500, {}

-- Readers that wait have made r:<run>:w (see events.lua); where there is none, no reader waits.
local function push_event(key, number, ...)
  local length = redis.call('RPUSH', key .. ':e', ...)
  if length > EVENTS + SPARE then redis.call('LTRIM', key .. ':e', -EVENTS, -1) end
  if woken[key] then return end
  woken[key] = true
  redis.call('XADD', key .. ':w', 'NOMKSTREAM', 'MAXLEN', 1, '*', 'n', number)
end

local function write_event(key, number, event, name)
  local data = event.data ~= 'null' and event.data or ''
  push_event(key, number, table.concat({event.letter or event.kind, now, event.visit, name, data, event.detail}, '\n'))
end

-- The root of a child run as it stands, and the way from there.
local function root_of(key)
  local fields = redis.call('HMGET', key, 'root', 'path')
  local root = prefix .. 'r:' .. fields[1]
  local run, size = unpack(redis.call('HMGET', root, 'run', 'size'))
  return {key = root, path = fields[2], run = run or '', size = tonumber(size or 0)}
end

-- What happens in a child run is written to its root's stream, too: numbered there, with the way to its node.
-- `bytes` are those that the root's size grows by.
local function echo(root, event, bytes)
  if event.kind:find('^run%.') then return end
  local head, number, stopping = root.run:match('^(.* )(%d+) (%S+)$')
  if not number then return end
  redis.call('HSET', root.key, 'run', head .. number + 1 .. ' ' .. stopping, 'size', root.size + (bytes or 0))
  write_event(root.key, number + 1, event, root.path .. event.node)
end
