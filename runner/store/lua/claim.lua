-- Give a ready visit to one worker, with all that it needs.
--
-- Keys touched: r:<run> (the node), timers (ring goes, lease comes), r:<run>:e; limit:h:<limit>,
--   limit:q:<limit>, rates, and the nodes, timers and queues of those that get a place; read: g:<fingerprint>,
--   r:<run> (inputs), :m (what the node kept).
-- Arguments: 6 run, 7 node, 8 visit, 9 attempt, 10 nonce.
-- Words: "claimed" (a repeat with the same nonce too), followed by: graph, fingerprint, node's
--   shape, node's record, task or item, state given, inputs (node, visit, output ...), questions (question,
--   decision ...), document, messages, record of its items or nil, report or nil; or "stale",
--   "cancelled", "unknown", "limited" (it waits for a place), "limited <ms>" (it begins so much later),
--   "revoked <reference>" (its run stopped while another system was at work for it).
-- include: claimed
-- include: limited
-- include: fence
-- include: reply
local name, visit, attempt, nonce = ARGV[7], tonumber(ARGV[8]), tonumber(ARGV[9]), ARGV[10]
local d = open(ARGV[6], name)
if not d then return {'unknown'} end
local record = node(d, name)
if record.status == 'running' and record.nonce == nonce then return claimed(d, name) end
if record.status == 'retrying' and record.granted and record.nonce == nonce then return {'limited'} end
if record.status == 'cancelled' and record.handed ~= '' and record.visit == visit and record.attempt == attempt then
  return {'revoked ' .. record.handed}
end
if record.status ~= 'ready' or record.visit ~= visit or record.attempt ~= attempt then return {'stale'} end
if stops(d, name) and name ~= '@after' then
  cancel_node(d, name)
  step(d)
  return reply('cancelled')
end
local refused = limited(d, name, record, nonce)
if refused then
  step(d)
  return reply(refused)
end
change(d, name, {status = 'running', fence = next_fence(record.fence, nonce), nonce = nonce, unseen = 0, rings = 0, granted = false})
timer(d, 'node', name, now + lease)
announce(d, 'node.started', name, visit, attempt)
step(d)
return claimed(d, name)
