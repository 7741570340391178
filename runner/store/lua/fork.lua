-- Begin a run from what another has done: its records are given, its results are copied.
--
-- Keys touched: the source's r:<run> and :m (read); g:<fingerprint> (counts its runs), r:<run> and its
--   parts, runs:* (indexes), timers; queues.
-- Arguments: 6 run, 7 graph, 8 fingerprint, 9 task, 10 invocation state, 11 tags (JSON), 12 source, then records
--   (parts/reopen.lua); then, each after how many there are: results (node.visit, place in the order), nodes
--   that keep their documents; then, if a visit is given another task: node, visit, task.
-- Words: "forked" (a repeat too), "unknown", "unknown_graph"; "full" and two sizes (parts/size.lua).
-- include: reopen
-- include: begin
-- include: copied
-- include: size
-- include: reply
local run, fp, source = ARGV[6], ARGV[8], prefix .. 'r:' .. ARGV[12]
local key, results, remembers = prefix .. 'r:' .. run, nil, nil
if redis.call('EXISTS', key) == 1 then return {'forked'} end
if redis.call('EXISTS', source) == 0 then return {'unknown'} end
if redis.call('HEXISTS', prefix .. 'g:' .. fp, 'meta') == 0 then return {'unknown_graph'} end
local records, place = read_records(13)
results, place = read_list(place, 2)
remembers, place = read_list(place, 1)
local bytes = RUN_BYTES + #ARGV[9] + #ARGV[10] + #ARGV[11] + #(ARGV[place + 2] or '')
bytes = bytes + copy_results(source, key, results) + copy_kept(source, key, remembers)
if bytes > most then
  for _, suffix in ipairs(KEYS_OF_RUN) do redis.call('UNLINK', key .. suffix) end
  return {'full', 0, bytes}
end
local d = begin({run = run, graph = ARGV[7], fp = fp, root = run, path = '', task = ARGV[9], state = ARGV[10],
  tags = ARGV[11], idem = ''})
announce(d, 'run.forked', '', 0, ARGV[12])
local timeout = shape(d, 'meta').timeout
if timeout > 0 then timer(d, 'deadline', '', now + timeout) end
grow(run, bytes)
if ARGV[place] then
  -- What a node keeps makes its claim go the general way, which looks for a task of its own.
  redis.call('HSETNX', key, 'k:' .. ARGV[place], 1)
  redis.call('HSET', key, 't:' .. ARGV[place] .. '.' .. ARGV[place + 1], ARGV[place + 2])
end
put_records(d, records)
step(d)
return reply('forked')
