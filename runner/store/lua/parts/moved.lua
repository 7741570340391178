-- A decided question whose node has another name.
-- include: size

-- A question that is decided has both names: an answer to the old one gets the receipt of a decided one.
local function move_question(d, each, number)
  local old, decided = redis.call('HGET', d.key .. ':i', each[1]), redis.call('HGET', d.key .. ':d', each[1])
  grow(d.root, #each[5] - json_bytes(d.key, each[2]))
  redis.call('HSET', d.key .. ':i', each[2], number .. old:match(' %d+ %d+ ') .. each[5])
  redis.call('HSET', d.key .. ':d', each[2], decided)
end
