-- Writing an event: field e is "kind at visit node detail" in lines, d its data (JSON).
-- include: settings
local function write_event(key, number, event, name)
  local said = table.concat({event.kind, now, event.visit, name, event.detail}, '\n')
  local fields = event.data and {'e', said, 'd', event.data} or {'e', said}
  redis.call('XADD', key .. ':e', 'MAXLEN', '~', 10000, number .. '-0', unpack(fields))
end

-- What happens in a child run is told in its root's stream, too: numbered there, with the way to its node.
local function echo(key, event)
  if event.kind:find('^run%.') then return end
  local found = redis.call('HMGET', key, 'root', 'path')
  local root = prefix .. 'r:' .. found[1]
  local head, number, stopping = (redis.call('HGET', root, 'run') or ''):match('^(.* )(%d+) (%S+)$')
  if not (number and found[2]) then return end
  redis.call('HSET', root, 'run', head .. number + 1 .. ' ' .. stopping)
  write_event(root, number + 1, event, found[2] .. event.node)
end

-- An output is told with its visit's end when it is short and no reference.
local function told(output)
  if #output <= 1000 and output:byte() ~= 64 then return output end
end
