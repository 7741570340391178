-- What an ended visit leaves behind, o:<node>.<visit> its output, x:<node>.<visit> its
-- entry, after the number of the event that completed it (0 where none did): so results have an order.
-- An item has no place in the order: its map has.
-- include: maps
local function leave_result(d, at, status, output, entry)
  if status == 'completed' then
    local place = map_of(at:match('^(.*)%.')) and 0 or d.run.events + 1
    redis.call('HSET', d.key, 'x:' .. at, place .. ' ' .. entry, 'o:' .. at, output)
  else
    redis.call('HSET', d.key, 'x:' .. at, '0 ' .. entry)
  end
end
