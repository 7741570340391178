-- A decided question whose node has another name.
-- include: size

-- A question that is decided has both names: an answer to the old one gets the receipt of a decided one.
local function move_question(d, question, number)
  local old, new = short_id(question[1]), short_id(question[2])
  local asked, decided = unpack(redis.call('HMGET', d.key, 'i:' .. old, 'd:' .. old))
  grow(d.root, #question[5] - json_bytes(d.key, question[2]))
  redis.call('HSET', d.key, 'i:' .. new, number .. asked:match(' %d+ %d+ ') .. question[5], 'd:' .. new, decided)
end
