-- What an ended visit leaves behind, o:<node>.<visit> its output, x:<node>.<visit> its
-- entry, after the number of the event that completed it (0 where none did): so results have an order.
-- include: draft
local function leave_result(d, at, status, output, entry)
  if status == 'completed' then
    redis.call('HSET', d.key, 'x:' .. at, d.run.events + 1 .. ' ' .. entry, 'o:' .. at, output)
  else
    redis.call('HSET', d.key, 'x:' .. at, '0 ' .. entry)
  end
end
