-- Write a new run, which has no nodes yet.
-- include: indexes
-- include: shape
-- include: change
-- One value of more than 64 bytes makes the server keep the hash as a table: otherwise it
-- searches through hundreds of fields, one after another.
local WIDE = ('-'):rep(65)

local function begin(of)
  local key, shape_key = prefix .. 'r:' .. of.run, prefix .. 'g:' .. of.fp
  redis.call('HSET', key, 'v', 1, 'run', 'executing 0 0 0 0 0 0 -',
    'of', of.fp .. ' ' .. (of.parent or '-') .. ' ' .. of.graph, 'parent_node', of.node or '', 'root', of.root,
    'path', of.path, 'created', now, 'task', of.task, 'state', of.state, 'tags', of.tags, 'idem', of.idem,
    'wide', WIDE)
  if (of.on_end or '') ~= '' then redis.call('HSET', key, 'on_end', of.on_end) end
  if (of.trace or '') ~= '' then redis.call('HSET', key, 'trace', of.trace) end
  list_run(of.run, 'executing', of.graph, of.tags, now)
  redis.call('HINCRBY', shape_key, 'runs', 1)
  redis.call('PERSIST', shape_key)
  local d = open(of.run)
  announce(d, 'run.started', '', 0, of.graph)
  return d
end
