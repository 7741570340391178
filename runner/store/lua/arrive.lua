-- A worker has the doorbell of a node that shares its queue between keys: it leaves the window, and the next ones are rung.
--
-- Keys touched: fair:w, fair:p, fair:s, fair:n of the queue; queues, wake; read: fair:windows, doorbell:<version>.
-- Arguments: 6 queue, 7 priority, 8 task.
-- Words: "rung", followed by the doorbells where no worker has left a template.
-- include: doorbells
redis.call('ZREM', FAIR .. 'w:' .. ARGV[6] .. '|' .. ARGV[7], ARGV[8])
refill(ARGV[6], tonumber(ARGV[7]), bells)
return ring_all('rung')
