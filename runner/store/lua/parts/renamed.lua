-- What a run has under the old names of its nodes is put under those of today.
-- include: maps
-- include: size

-- Two nodes may have exchanged their names: all is taken away before anything is put in its place.
local function move_field(puts, key, old, new)
  local value = redis.call('HGET', key, old)
  if not value then return end
  redis.call('HDEL', key, old)
  puts[#puts + 1] = {key, new, value}
end

local function take_node(d, puts, old, new, visit, document, decided)
  local list, suffix = d.key .. ':m', '.' .. visit
  for place = 1, tonumber(redis.call('HGET', list, '#' .. old) or 0) do
    move_field(puts, list, place .. '.' .. old, place .. '.' .. new)
  end
  move_field(puts, list, '#' .. old, '#' .. new)
  grow(d.root, #document - document_bytes(d.key, old))
  redis.call('HDEL', d.key, 'q:' .. old)
  if decided ~= '' then puts[#puts + 1] = {d.key, 'q:' .. new, decided} end
  local kept = document ~= '' and document or (redis.call('HGET', d.key, 'k:' .. old) == '1' and '1')
  redis.call('HDEL', d.key, 'k:' .. old)
  if kept then puts[#puts + 1] = {d.key, 'k:' .. new, kept} end
  move_field(puts, d.key, 't:' .. old .. suffix, 't:' .. new .. suffix)
  local items = read_map(redis.call('HGET', d.key, 'm:' .. old)).total
  for index = 0, items - 1 do move_field(puts, d.key .. ':f', old .. suffix .. '.' .. index, new .. suffix .. '.' .. index) end
  move_field(puts, d.key, 'm:' .. old, 'm:' .. new)
end

local function take_visit(d, puts, old, new, entry)
  local place = redis.call('HGET', d.key, 'x:' .. old):match('^%S+')
  if entry ~= '' then redis.call('HSET', d.key, 'x:' .. old, place .. ' ' .. entry) end
  move_field(puts, d.key, 'x:' .. old, 'x:' .. new)
  move_field(puts, d.key, 'o:' .. old, 'o:' .. new)
end

local function rename_all(d, move)
  local puts = {}
  for _, each in ipairs(move.forgets) do redis.call('HDEL', d.key, 'm:' .. each[1]) end
  for _, each in ipairs(move.visits) do take_visit(d, puts, unpack(each)) end
  for _, each in ipairs(move.renamed) do take_node(d, puts, unpack(each)) end
  for _, each in ipairs(puts) do redis.call('HSET', unpack(each)) end
end
