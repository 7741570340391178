-- Release held nodes.
--
-- Keys touched: r:<run> (the nodes, counters), r:<run>:e, timers, notices, runs:*; its parent's;
--   queues.
-- Arguments: 6 run, 7 ... nodes.
-- Words: "released"; "stale" when none of them is set aside.
-- include: ring
-- include: reply
local d, word = open(ARGV[6]), 'stale'
if not d then return {word} end
for place = 7, #ARGV do
  local name = ARGV[place]
  local record = node(d, name)
  if record.held then
    announce(d, 'node.released', name, record.visit)
    ring(d, name, {})
    word = 'released'
  end
end
if word == 'stale' then return {word} end
step(d)
return reply(word)
