-- Open the next batch of a run that goes in batches, or none, and so end the run.
--
-- Keys touched: r:<run> (nodes, counters), :s and :m (kept), :q, :e, timers, notices, runs:<status>; its
--   parent's r:<run>; queues; r:<root> (size).
-- Arguments: 5 run, 6 visit and 7 fence of the node that ends batches, 8 nonce, 9 the batch's completed
--   nodes with a bit for each edge out (JSON), 10 the next batch's nodes with the (node, visit) of their
--   inputs (JSON), 11 why the run fails instead, or "", then what is kept.
-- Words: "advanced" (a repeat too), "stale".
-- include: held
-- include: kept
-- include: batch
-- include: reply
local name, visit, nonce = '@batch', tonumber(ARGV[6]), ARGV[8]
local d = open(ARGV[5], name)
if not d then return {'stale'} end
local record = node(d, name)
if record.nonce == nonce and record.status ~= 'running' then return {'advanced'} end
if not holds(record, visit, tonumber(ARGV[7])) then return {'stale'} end
local bytes, had = kept_bytes(d.key, name, 12)
grow(d.root, bytes)
keep(d.key, name, 12, had)
timer(d, 'node', name, false)
announce(d, 'node.completed', name, visit)
change(d, name, {status = 'completed', nonce = nonce, via = {}, crashes = 0})
for _, item in ipairs(cjson.decode(ARGV[9])) do change(d, item[1], {edges = item[2]}) end
local following, limit = cjson.decode(ARGV[10]), shape(d, 'meta').limit
local first = following[1] and following[1][1]
if first and ARGV[11] ~= '' then
  stop(d, 'failed', ARGV[11])
elseif first and limit > 0 and d.run.started >= limit then
  stop(d, 'failed', ('max_node_executions (%d) reached before "%s"'):format(limit, first))
elseif first and d.run.stopping == '' then
  load(d, following)
  open_batch(d, following)
end
step(d)
return reply('advanced')
