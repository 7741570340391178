-- Remove a doorbell that a worker has taken from the window of its queue, which keys share, and ring the next ones.
-- Without a priority and a task, after slots were counted, ring the next doorbells of every priority.
--
-- Keys touched: fair:w, fair:p, fair:s, fair:n of the queue; queues, wake; read: fair:windows, r:<run> of waiting nodes,
--   doorbell:<version>.
-- Arguments: 6 queue, 7 priority or "", 8 task or "".
-- Words: "rung", or "more" if it must be called again because so many waiting doorbells were obsolete; then the doorbells,
--   if no worker has left a template.
-- include: doorbells
local word = 'rung'
if ARGV[8] ~= '' then redis.call('ZREM', FAIR .. 'w:' .. ARGV[6] .. '|' .. ARGV[7], ARGV[8]) end
for priority = tonumber(ARGV[7]) or 0, tonumber(ARGV[7]) or 9 do
  if refill(ARGV[6], priority, bells) then word = 'more' end
end
return ring_all(word)
