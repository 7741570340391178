-- What an ended visit leaves behind, o:<node>.<visit> its output, x:<node>.<visit> its
-- entry, after the number of the event that completed it (0 where none did): so results have an order.
-- An item has no place in the order: its map has.
-- include: maps
local function leave_result(d, visit_id, status, output, entry)
  if status == 'completed' then
    local place = map_of(visit_id:match('^(.*)%.')) and 0 or d.run.events + 1
    redis.call('HSET', d.key, 'x:' .. visit_id, place .. ' ' .. entry)
    -- An entry with a place in the order and no output has this one.
    if place == 0 or output ~= 'null' then redis.call('HSET', d.key, 'o:' .. visit_id, output) end
  else
    redis.call('HSET', d.key, 'x:' .. visit_id, '0 ' .. entry)
  end
end
