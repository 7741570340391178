-- Publish questions of a running visit at once, with what it keeps.
--
-- Keys touched: r:<run> (the node), questions, :m (kept), :e, timers, open:*,
--   notices, r:<root> (size), early, early:<door>.
-- Arguments: 6 run, 7 node, 8 visit, 9 fence, 10 ... questions (see parts/question_arguments.lua), then what is kept.
-- Words: "asked"; "stopping" when the run stops (they are withdrawn); "stale"; "full" and two sizes.
-- include: ownership
-- include: kept
-- include: open_questions
-- include: reply
local name = ARGV[7]
local d = open(ARGV[6], name)
if not d or not holds(node(d, name), tonumber(ARGV[8]), tonumber(ARGV[9])) then return {'stale'} end
local questions, rest = read_questions(10)
local bytes, had = kept_bytes(d.key, name, rest)
local refused = full(d.root, stops(d, name), bytes + asked_bytes(d, questions))
if refused then return refused end
grow(d.root, bytes)
keep(d.key, name, rest, had)
local word = publish(d, name, questions) and 'asked' or 'stopping'
step(d)
return reply(word)
