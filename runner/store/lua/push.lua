-- Push the doorbells of runs on another server, which doesn't have the task queue.
--
-- Keys touched: queues, wake; read: doorbell:<version>.
-- Arguments: 6 run, 7 node, 8 visit, 9 attempt, 10 queue, 11 priority, 12 graph of a doorbell, and so on.
-- Words: "pushed", followed by the doorbells if no worker has left a template.
-- include: doorbells
for place = 6, #ARGV, 7 do
  bells[#bells + 1] = {ARGV[place], ARGV[place + 1], tonumber(ARGV[place + 2]), tonumber(ARGV[place + 3]),
    ARGV[place + 4], tonumber(ARGV[place + 5]), ARGV[place + 6]}
end
return ring_all('pushed')
