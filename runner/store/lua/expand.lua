-- A running map waits for its items; a long list comes in several calls.
--
-- Keys touched: r:<run> (the map's node and record, items' nodes, counters), r:<run>:f (the items), :e,
--   timers, runs:*; its parent's r:<run>; queues; r:<root> (size).
-- Arguments: 6 run, 7 node, 8 visit, 9 fence, 10 how many items there are ("": go on with those of this
--   visit), 11 "1" when no more follow, 12 index of the first of these, 13 bytes of all items, 14 ... these (JSON).
-- Words: "more" when others follow, "expanded", "cancelled" when the run stops, "no_items", "stale";
--   "full" and two sizes, before the first of the items is written (parts/size.lua).
-- include: ownership
-- include: step
-- include: stop
-- include: reply
local EXPANDED = {waiting = 'expanded', ready = 'expanded', cancelled = 'cancelled'}
local name, visit, fence, total = ARGV[7], tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local d = open(ARGV[6], name)
if not d then return {'stale'} end
local record = node(d, name)
if not holds(record, visit, fence) then return {refusal(record, visit, fence, EXPANDED)} end
local known, fields = map(d, name).visit == visit, {}
if not known and not total then return {'no_items'} end
local refused = not known and ARGV[12] == '0' and full(d.root, stops(d, name), tonumber(ARGV[13]))
if refused then return refused end
for place = 14, known and 0 or #ARGV do
  fields[#fields + 1] = name .. '.' .. ARGV[8] .. '.' .. tonumber(ARGV[12]) + place - 14
  fields[#fields + 1] = ARGV[place]
end
many('HSET', d.key .. ':f', fields)
if ARGV[11] ~= '1' then return {'more'} end
timer(d, 'node', name, false)
if d.run.stopping ~= '' then
  cancel_node(d, name)
  step(d)
  return reply('cancelled')
end
if not known then
  grow(d.root, tonumber(ARGV[13]))
  announce(d, 'node.expanded', name, visit, ARGV[10])
  set_map(d, name, {visit = visit, total = total, next = 0, active = 0, waiting = 0, failed = 0, stopped = 0, swept = 0})
end
set_map(d, name, {})
change(d, name, {status = 'waiting', items = true, busy = true, crashes = 0})
step(d)
return reply('expanded')
