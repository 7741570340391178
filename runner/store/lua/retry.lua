-- Run a visit again after a delay.
--
-- Keys touched: r:<run> (the node, its error), :s and :m (kept), :e, timers, notices,
--   runs:<status>; its parent's r:<run>; queues; r:<root> (size).
-- Arguments: 5 run, 6 node, 7 visit, 8 fence, 9 delay in ms, 10 entry with the error, which makes it a new
--   attempt, or "", 11 what its event tells (JSON), then what is kept.
-- Words: "retrying", "cancelled" when the run stops, "stale".
-- include: room
-- include: held
-- include: result
-- include: kept
-- include: mapping
-- include: reply
local name, visit, fence, counts = ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[10] ~= ''
local d = open(ARGV[5], name)
if not d then return {'stale'} end
local record, word = node(d, name), 'retrying'
if not holds(record, visit, fence) then
  return {refusal(record, visit, fence, {retrying = 'retrying', cancelled = 'cancelled'})}
end
make_room()
local bytes, had = kept_bytes(d.key, name, 12)
grow(d.root, bytes)
keep(d.key, name, 12, had)
if counts then leave_result(d, name .. '.' .. visit, 'retrying', '', ARGV[10]) end
timer(d, 'node', name, false)
if stops(d, name) then
  cancel_node(d, name)
  word = 'cancelled'
else
  if counts then rewind(d, name) end
  change(d, name, counts and fresh({status = 'retrying', attempt = record.attempt + 1}) or {status = 'retrying'})
  timer(d, 'node', name, now + tonumber(ARGV[9]))
  announce(d, 'node.retrying', name, visit, ARGV[9], ARGV[11])
end
step(d)
return reply(word)
