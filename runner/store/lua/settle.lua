-- End a visit: write what it leaves behind, carry its arrivals, ring what became ready.
--
-- Keys touched: r:<run> (nodes, loops, counters, result), :m (kept), :q, :e,
--   timers, open:*, notices, runs:*; its parent's; queues; session:m:<session>,
--   session:s:<session>; r:<root> (size).
-- Arguments: 6 run, 7 node, 8 visit, 9 fence, 10 nonce, 11 "completed" or "failed", 12 a bit for each
--   edge out, 13 output, or the payload of a failure, 14 entry, 15 "1" to lock when refused, 16 how
--   many results the conditions read, then for each: node, visit, status; then what a session gets
--   (parts/remember.lua); then what is kept.
-- Words: "settled" (a repeat too), "changed" when what the conditions read has changed, "locked", "stale";
--   "full" and two sizes (parts/size.lua).
-- include: room
-- include: lock
-- include: ownership
-- include: result
-- include: kept
-- include: remember
-- include: finish
-- include: reply
local name, visit, nonce, status = ARGV[7], tonumber(ARGV[8]), ARGV[10], ARGV[11]
local d = open(ARGV[6], name)
if not d then return {'stale'} end
local record, last = node(d, name), 16 + 3 * tonumber(ARGV[16])
if record.nonce == nonce and record.status ~= 'running' then return {'settled'} end
if not holds(record, visit, tonumber(ARGV[9])) then return {'stale'} end
local done = status == 'completed'
local document_place = remember_until(last + 1) + 1
local bytes, had = kept_bytes(d.key, name, document_place)
bytes = bytes + VISIT_BYTES + #ARGV[14] + (done and #ARGV[13] or 0)
local refused = full(d.root, not done or stops(d, name) or name == '@after', bytes)
if refused then return refused end
refused = locked(d, name .. '.' .. visit .. '.' .. ARGV[9], ARGV[15] == '1', 17, last)
if refused then return reply(refused) end
make_room()
grow(d.root, bytes)
rung_by_task(d.id, name, visit, record.attempt)
leave_result(d, name .. '.' .. visit, status, ARGV[13], ARGV[14])
keep(d.key, name, document_place, had)
remember(d.key, name, last + 1)
timer(d, 'node', name, false)
withdraw(d, name, visit, record.questions)
finish(d, name, {nonce = nonce, questions = {}, unseen = 0}, status, ARGV[12], short_output(ARGV[13]))
step(d)
return reply('settled')
