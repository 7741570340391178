-- A worker has the doorbell of a node that shares its queue between keys: it leaves the window, and the next ones are rung.
-- Without a priority and a task, when slots were counted: the next ones of every priority are rung.
--
-- Keys touched: fair:w, fair:p, fair:s, fair:n of the queue; queues, wake; read: fair:windows, r:<run> of those that wait,
--   doorbell:<version>.
-- Arguments: 6 queue, 7 priority or "", 8 task or "".
-- Words: "rung", or "more" where so many waited in vain that it must be called again; followed by the doorbells where no worker
-- has left a template.
-- include: doorbells
local word = 'rung'
if ARGV[8] ~= '' then redis.call('ZREM', FAIR .. 'w:' .. ARGV[6] .. '|' .. ARGV[7], ARGV[8]) end
for priority = tonumber(ARGV[7]) or 0, tonumber(ARGV[7]) or 9 do
  if refill(ARGV[6], priority, bells) then word = 'more' end
end
return ring_all(word)
