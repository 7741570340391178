-- A decided question whose node has another name.
-- include: size

-- A question that is decided has both names: an answer to the old one gets the receipt of a decided one.
local function move_question(d, question, number)
  local old, decided = redis.call('HGET', d.key .. ':i', question[1]), redis.call('HGET', d.key .. ':d', question[1])
  grow(d.root, #question[5] - json_bytes(d.key, question[2]))
  redis.call('HSET', d.key .. ':i', question[2], number .. old:match(' %d+ %d+ ') .. question[5])
  redis.call('HSET', d.key .. ':d', question[2], decided)
end
