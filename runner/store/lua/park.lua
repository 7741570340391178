-- A running visit waits for people.
--
-- Keys touched: r:<run> (the node, counters), questions, :m (kept), :e,
--   timers, open:*, notices, r:<root> (size), early, early:<door>; its parent's r:<run>; queues.
-- Arguments: 6 run, 7 node, 8 visit, 9 fence, 10 ... all questions that are open (see parts/question_arguments.lua),
--   then what is kept.
-- Words: "waiting"; "ready" when an answer it has not seen suffices; "cancelled"; "nothing_open"; "stale";
--   "full" and two sizes (parts/size.lua).
-- include: room
-- include: ownership
-- include: kept
-- include: open_questions
-- include: resolve
-- include: reply
local PARKED = {waiting = 'waiting', ready = 'ready', cancelled = 'cancelled'}
local name, visit, fence = ARGV[7], tonumber(ARGV[8]), tonumber(ARGV[9])
local d = open(ARGV[6], name)
if not d then return {'stale'} end
if not holds(node(d, name), visit, fence) then return {refusal(node(d, name), visit, fence, PARKED)} end
local questions, rest = read_questions(10)
local bytes, had = kept_bytes(d.key, name, rest)
local refused = full(d.root, stops(d, name), bytes + asked_bytes(d, questions))
if refused then return refused end
make_room()
grow(d.root, bytes)
keep(d.key, name, rest, had)
timer(d, 'node', name, false)
if not publish(d, name, questions) then
  cancel_node(d, name)
  step(d)
  return reply('cancelled')
end
local record, asked, left, gone, word = node(d, name), {}, {}, {}, 'waiting'
for _, question in ipairs(questions) do asked[question.id] = true end
for _, id in ipairs(record.questions) do
  if asked[id] then left[#left + 1] = id else gone[#gone + 1] = id end
end
withdraw(d, name, visit, gone)
if #left == 0 and record.unseen == 0 then return {'nothing_open'} end
if satisfied(d, name, record.unseen, left) then
  word = 'ready'
  ring(d, name, {questions = left, crashes = 0})
else
  change(d, name, {status = 'waiting', questions = left, crashes = 0})
  announce(d, 'node.waiting', name, visit)
end
step(d)
return reply(word)
