-- Reopen ended runs with other records: all of them, or none when one has moved since it was read.
--
-- Keys touched: r:<run> and its parts (records replaced, expiry removed), their children's (expiry),
--   g:<fingerprint> (counts its runs), idem:<graph>:<key>, retired, timers, runs:*,
--   notices; the parent's r:<run>; queues.
-- Arguments: 6 nonce, then for each run, a parent before its children: run, its number of events, records
--   (parts/reopen.lua); then, each after how many there are: visits undone (node.visit, entry), nodes
--   that lose what they kept.
-- Words: "reopened", "moved", "unknown".
-- include: reopen
-- include: revive
-- include: reply
local runs, repeated, place = {}, true, 7
while ARGV[place] do
  local request = {run = ARGV[place], events = tonumber(ARGV[place + 1])}
  request.records, place = read_records(place + 2)
  request.undone, place = read_list(place, 2)
  request.forgets, place = read_list(place, 1)
  runs[#runs + 1] = request
end
for _, request in ipairs(runs) do
  request.d = open(request.run)
  if not request.d then return {'unknown'} end
  repeated = repeated and redis.call('HGET', request.d.key, 'again') == ARGV[6]
end
if repeated then return {'reopened'} end
for _, request in ipairs(runs) do
  if not FINAL[request.d.run.status] or request.d.run.events ~= request.events then return {'moved'} end
end
for _, request in ipairs(runs) do
  -- Opened again: what was done to the runs before this one may have written in it.
  local d = open(request.run)
  revive(d)
  erase(d, request.undone, request.forgets)
  redis.call('HSET', d.key, 'again', ARGV[6])
  d.run.stopping, d.run.reason, d.run.lock = '', '', ''
  announce(d, 'run.retried')
  local timeout = shape(d, 'meta').timeout
  if timeout > 0 then timer(d, 'deadline', '', now + timeout) end
  put_records(d, request.records)
  step(d)
  follow_all()
end
return reply('reopened')
