-- Publish questions of a running visit at once, with what it keeps.
--
-- Keys touched: r:<run> (the node), r:<run>:i and :d (questions), :s and :m (kept), :e, timers, open,
--   notices.
-- Arguments: 5 run, 6 node, 7 visit, 8 fence, 9 ... questions (see parts/asking.lua), then what is kept.
-- Words: "asked"; "stopping" when the run stops (they are withdrawn); "stale".
-- include: held
-- include: kept
-- include: asking
-- include: reply
local name = ARGV[6]
local d = open(ARGV[5], name)
if not d or not holds(node(d, name), tonumber(ARGV[7]), tonumber(ARGV[8])) then return {'stale'} end
local questions, rest = read_questions(9)
keep(d.key, name, rest)
local word = publish(d, name, questions) and 'asked' or 'stopping'
step(d)
return reply(word)
