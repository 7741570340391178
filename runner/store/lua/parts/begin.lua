-- Write a new run, which has no nodes yet.
-- include: indexes
-- include: shape
-- include: change
-- A value of more than 64 bytes makes the server keep the hash as a table: otherwise it
-- searches through hundreds of fields, one after another.
local FORM = '1 ' .. ('-'):rep(63)
-- What a run is most often is not stored.
local USUAL = {parent_node = '', path = '', task = 'null', state = '{}', tags = '{}', idem = '', on_end = '', trace = ''}

local function begin(of)
  local key, shape_key = prefix .. 'r:' .. of.run, prefix .. 'g:' .. of.fp
  local fields = {'v', FORM, 'run', 'executing 0 0 0 0 0 0 -', 'created', now,
    'of', of.fp .. ' ' .. (of.parent or '-') .. ' ' .. of.graph}
  for name, usual in pairs(USUAL) do
    if (of[name] or usual) ~= usual then fields[#fields + 1], fields[#fields + 2] = name, of[name] end
  end
  if of.root ~= of.run then fields[#fields + 1], fields[#fields + 2] = 'root', of.root end
  redis.call('HSET', key, unpack(fields))
  list_run(of.run, 'executing', of.graph, now, of.tags)
  redis.call('HINCRBY', shape_key, 'runs', 1)
  redis.call('PERSIST', shape_key)
  local d = open(of.run)
  announce(d, 'run.started', '', 0, of.graph)
  return d
end
