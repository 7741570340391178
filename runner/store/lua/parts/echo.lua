-- Writing an event: lines with kind, at, visit, node, data (JSON) and detail; the detail may have several lines. The
-- most frequent kinds are written as letters: see EVENT_LETTERS in runner/store/encoding.py.
-- include: settings
-- The newest EVENTS stay; older ones are removed some hundred at a time.
local EVENTS, SPARE, woken = 10000, 500, {}

-- Waiting readers have made r:<run>:w (see events.lua); without it, no reader waits.
local function push_event(key, number, ...)
  local length = redis.call('RPUSH', key .. ':e', ...)
  if length > EVENTS + SPARE then redis.call('LTRIM', key .. ':e', -EVENTS, -1) end
  if woken[key] then return end
  woken[key] = true
  redis.call('XADD', key .. ':w', 'NOMKSTREAM', 'MAXLEN', 1, '*', 'n', number)
end

local function event_text(kind, visit, name, data, detail)
  return kind .. '\n' .. now .. '\n' .. visit .. '\n' .. name .. '\n' .. (data ~= 'null' and data or '') .. '\n' .. detail
end

local function write_event(key, number, event, name)
  push_event(key, number, event_text(event.letter or event.kind, event.visit, name, event.data, event.detail))
end

-- The data of an event that names a worker, by the nonce of its claim.
local function by_worker(nonce)
  local worker = nonce:match(':(.*)')
  return worker and '{"worker":"' .. worker .. '"}'
end

-- The root of a child run, and the path from there.
local function root_of(key)
  local fields = redis.call('HMGET', key, 'root', 'path')
  local root = prefix .. 'r:' .. fields[1]
  local run, size = unpack(redis.call('HMGET', root, 'run', 'size'))
  return {key = root, path = fields[2], run = run or '', size = tonumber(size or 0)}
end

-- The events of a child run are also written to its root's events, numbered there, with the path to the node.
-- `bytes` is the growth of the root's size.
local function echo(root, event, bytes)
  if event.kind:find('^run%.') then return end
  local head, number, stopping = root.run:match('@run(status+started events stopping)')
  if not number then return end
  redis.call('HSET', root.key, 'run', head .. ' ' .. number + 1 .. ' ' .. stopping, 'size', root.size + (bytes or 0))
  write_event(root.key, number + 1, event, root.path .. event.node)
end
