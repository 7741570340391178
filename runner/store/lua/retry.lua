-- Run a visit again after a delay.
--
-- Keys touched: r:<run> (the node, its error), :m (kept), :e, timers, notices,
--   runs:*; its parent's r:<run>; queues; r:<root> (size).
-- Arguments: 6 run, 7 node, 8 visit, 9 fence, 10 delay in ms, 11 entry with the error, which makes it a new
--   attempt, or "", 12 what its event tells (JSON), then what is kept.
-- Words: "retrying", "cancelled" when the run stops, "stale".
-- include: room
-- include: ownership
-- include: result
-- include: kept
-- include: mapping
-- include: reply
local name, visit, fence, counts = ARGV[7], tonumber(ARGV[8]), tonumber(ARGV[9]), ARGV[11] ~= ''
local d = open(ARGV[6], name)
if not d then return {'stale'} end
local record, word = node(d, name), 'retrying'
if not holds(record, visit, fence) then
  return {refusal(record, visit, fence, {retrying = 'retrying', cancelled = 'cancelled'})}
end
make_room()
local bytes, had = kept_bytes(d.key, name, 13)
grow(d.root, bytes)
keep(d.key, name, 13, had)
if counts then leave_result(d, name .. '.' .. visit, 'retrying', '', ARGV[11]) end
timer(d, 'node', name, false)
if stops(d, name) then
  cancel_node(d, name)
  word = 'cancelled'
else
  if counts then rewind(d, name) end
  change(d, name, counts and fresh({status = 'retrying', attempt = record.attempt + 1}) or {status = 'retrying'})
  timer(d, 'node', name, now + tonumber(ARGV[10]))
  announce(d, 'node.retrying', name, visit, ARGV[10], ARGV[12])
end
step(d)
return reply(word)
