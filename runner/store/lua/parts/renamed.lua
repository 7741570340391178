-- What a run has under the old names of its nodes is put under those of today.
-- include: maps

local function move_field(key, old, new)
  local found = redis.call('HGET', key, old)
  if not found or old == new then return end
  redis.call('HSET', key, new, found)
  redis.call('HDEL', key, old)
end

-- A question that is decided has both names: whoever answers the old one learns that it is.
local function move_question(d, each, number)
  local old, decided = redis.call('HGET', d.key .. ':i', each[1]), redis.call('HGET', d.key .. ':d', each[1])
  redis.call('HSET', d.key .. ':i', each[2], number .. old:match(' %d+ %d+ ') .. each[5])
  redis.call('HSET', d.key .. ':d', each[2], decided)
end

local function rename_node(d, old, new, visit, document, decided)
  local list, at = d.key .. ':m', '.' .. visit
  for place = 1, tonumber(redis.call('HGET', list, '#' .. old) or 0) do
    move_field(list, place .. '.' .. old, place .. '.' .. new)
  end
  move_field(list, '#' .. old, '#' .. new)
  redis.call('HDEL', d.key .. ':s', old)
  if document ~= '' then redis.call('HSET', d.key .. ':s', new, document) end
  redis.call('HDEL', d.key, 'q:' .. old)
  if decided ~= '' then redis.call('HSET', d.key, 'q:' .. new, decided) end
  move_field(d.key, 'k:' .. old, 'k:' .. new)
  move_field(d.key, 't:' .. old .. at, 't:' .. new .. at)
  local items = read_map(redis.call('HGET', d.key, 'm:' .. old)).total
  for index = 0, items - 1 do move_field(d.key .. ':f', old .. at .. '.' .. index, new .. at .. '.' .. index) end
  move_field(d.key, 'm:' .. old, 'm:' .. new)
end

local function rename_all(d, move)
  for _, each in ipairs(move.forgets) do redis.call('HDEL', d.key, 'm:' .. each[1]) end
  for _, each in ipairs(move.visits) do
    local place = redis.call('HGET', d.key, 'x:' .. each[1]):match('^%S+')
    if each[3] ~= '' then redis.call('HSET', d.key, 'x:' .. each[1], place .. ' ' .. each[3]) end
    move_field(d.key, 'x:' .. each[1], 'x:' .. each[2])
    move_field(d.key, 'o:' .. each[1], 'o:' .. each[2])
  end
  for _, each in ipairs(move.renamed) do rename_node(d, unpack(each)) end
end
