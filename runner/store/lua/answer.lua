-- Apply a set of answers that was judged: all of them, or none when one of them has moved since.
--
-- Keys touched: r:<run> (nodes, decisions), r:<run>:e, timers, open:*,
--   notices,
--   runs:*; parents' r:<run>; queues; r:<root> (size).
-- Arguments: 6 nonce, then for each answer: run, node, visit, question's id, decision (JSON),
--   what its event tells (JSON).
-- Words: "answered" (a repeat too), "moved" when a question is not open any more. An id always asks the same
--   (see parts/open_questions.lua), so what is open is what was judged.
-- include: resolve
-- include: reply
local nonce, fresh, groups = ARGV[6], 0, {}
for place = 7, #ARGV, 6 do
  local key, id = prefix .. 'r:' .. ARGV[place], ARGV[place + 3]
  local asked, decided = unpack(redis.call('HMGET', key, 'i:' .. short_id(id), 'd:' .. short_id(id)))
  local expires = asked and tonumber(asked:match('^%d+ %d+ (%d+) '))
  if not asked then return {'moved'} end
  if decided then
    if nonce ~= decided:match('^answered %d+ (%S*) ') then return {'moved'} end
  else
    if expires > 0 and now >= expires then return {'moved'} end
    fresh = fresh + 1
  end
end
if fresh == 0 then return {'answered'} end
for place = 7, #ARGV, 6 do
  local run, name, visit, id = ARGV[place], ARGV[place + 1], ARGV[place + 2], ARGV[place + 3]
  local decision = table.concat({'answered', now, nonce, ARGV[place + 4]}, ' ')
  redis.call('HSET', prefix .. 'r:' .. run, 'd:' .. short_id(id), decision)
  grow(redis.call('HGET', prefix .. 'r:' .. run, 'root') or run, #ARGV[place + 4])
  list_closed(prefix .. 'r:' .. run, id)
  local group = groups[#groups]
  if not group or group.run ~= run or group.name ~= name or group.visit ~= visit then
    group = {run = run, name = name, visit = visit, ids = {}, payloads = {}}
    groups[#groups + 1] = group
  end
  group.ids[#group.ids + 1], group.payloads[id] = id, ARGV[place + 5]
end
for _, group in ipairs(groups) do
  local d = open(group.run, group.name)
  for _, id in ipairs(group.ids) do
    announce(d, 'interrupt.answered', group.name, group.visit, id, group.payloads[id])
  end
  resolve(d, group.name, group.visit, group.ids)
  step(d)
  follow_all()
end
return reply('answered')
