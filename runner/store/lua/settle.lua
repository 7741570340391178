-- End a visit: write what it leaves behind, carry its arrivals, ring what became ready.
--
-- Keys touched: r:<run> (nodes, loops, counters, result), :s and :m (kept), :q, :e, :i and
--   :d (withdrawn), timers, open, notices, runs:<status>; its parent's; queues; session:m:<session>,
--   session:s:<session>; r:<root> (size).
-- Arguments: 5 run, 6 node, 7 visit, 8 fence, 9 nonce, 10 "completed", "failed" or "alone" (failed, and
--   never stops its run), 11 a bit for each edge out, 12 output, or what is told of a failure, 13 entry,
--   14 "1" to lock when refused, 15 how many results the conditions read, then for each: node, visit,
--   status; then what a session gets (parts/remember.lua); then what is kept.
-- Words: "settled" (a repeat too), "changed" when what the conditions read has changed, "locked", "stale";
--   "full" and two sizes (parts/size.lua).
-- include: straight_settle
-- include: room
-- include: lock
-- include: held
-- include: result
-- include: kept
-- include: remember
-- include: finish
-- include: reply
local name, visit, nonce, alone = ARGV[6], tonumber(ARGV[7]), ARGV[9], ARGV[10] == 'alone'
local status = alone and 'failed' or ARGV[10]
local d = open(ARGV[5], name)
if not d then return {'stale'} end
local record, last = node(d, name), 15 + 3 * tonumber(ARGV[15])
if record.nonce == nonce and record.status ~= 'running' then return {'settled'} end
if not holds(record, visit, tonumber(ARGV[8])) then return {'stale'} end
local done = status == 'completed'
local kept = remember_until(last + 1) + 1
local bytes, had = kept_bytes(d.key, name, kept)
bytes = bytes + #ARGV[13] + (done and #ARGV[12] or 0)
local refused = full(d.root, not done or stops(d, name) or name == '@after', bytes)
if refused then return refused end
refused = locked(d, name .. '.' .. visit .. '.' .. ARGV[8], ARGV[14] == '1', 16, last)
if refused then return reply(refused) end
make_room()
grow(d.root, bytes)
rung_by_task(d.id, name, visit, record.attempt)
leave_result(d, name .. '.' .. visit, status, ARGV[12], ARGV[13])
keep(d.key, name, kept, had)
remember(d.key, name, last + 1)
timer(d, 'node', name, false)
withdraw(d, name, visit, record.questions)
finish(d, name, {nonce = nonce, questions = {}, unseen = 0}, status, ARGV[11], told(ARGV[12]), alone)
step(d)
return reply('settled')
