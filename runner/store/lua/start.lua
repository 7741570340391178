-- Begin a run; a child run also makes its parent's node wait for it.
--
-- Keys touched: graphs, g:<fingerprint> (counts its runs), idem:<graph>:<key> (-> run id), r:<run> and
--   its parts, runs and runs:* (indexes), timers, notices; the parent's r:<run>, queues.
-- Arguments: 5 run, 6 graph, 7 fingerprint ("": the current one), 8 task, 9 state given, 10 tags (JSON),
--   11 idempotency key or "", 12 root run or "", 13 the task to call at its end or "", then for a child:
--   14 parent run, 15 node, 16 visit, 17 fence.
-- Words: "started", "exists" (and that run's id), "unknown_graph"; for a child also "stale", "cancelled";
--   "full" and two sizes (parts/size.lua).
-- include: reply
-- include: delegate
-- include: size
-- include: arrive
-- include: begin
-- include: batch
local run, graph, fp = ARGV[5], ARGV[6], ARGV[7]
if fp == '' then fp = redis.call('HGET', prefix .. 'graphs', graph) end
if not fp or redis.call('HEXISTS', prefix .. 'g:' .. fp, 'meta') == 0 then return {'unknown_graph'} end
local key, idem = prefix .. 'r:' .. run, ''
if ARGV[11] ~= '' then
  -- The names of no graph have "//": so the first colon ends them, whatever else has colons.
  idem = prefix .. 'idem:' .. graph:gsub(':', '//') .. ':' .. ARGV[11]
  local found = redis.call('GET', idem)
  if found then return {'exists', found} end
end
if redis.call('EXISTS', key) == 1 then return {'started'} end
local root, path, above, stopping = ARGV[12] ~= '' and ARGV[12] or run, '', nil, false
if ARGV[14] then
  above = redis.call('HMGET', prefix .. 'r:' .. ARGV[14], 'root', 'path', 'run')
  root = ARGV[12] ~= '' and ARGV[12] or above[1] or run
  path, stopping = (above[2] or '') .. ARGV[15] .. '/', above[3] and not above[3]:find(' %-$')
end
local bytes = #ARGV[8] + #ARGV[9] + #ARGV[10]
local refused = full(root, stopping, bytes)
if refused then return refused end
if ARGV[14] then
  local word = delegate(ARGV[14], ARGV[15], tonumber(ARGV[16]), tonumber(ARGV[17]), run)
  if word ~= 'delegated' then return reply(word) end
  follow_all()
  redis.call('RPUSH', prefix .. 'r:' .. ARGV[14] .. ':c', run)
end
if idem ~= '' then redis.call('SET', idem, run) end
local d = begin({run = run, graph = graph, fp = fp, parent = ARGV[14], node = ARGV[15], root = root, path = path,
  task = ARGV[8], given = ARGV[9], tags = ARGV[10], idem = idem,
  on_end = ARGV[13]})
grow(root, bytes)
local meta = shape(d, 'meta')
if meta.timeout > 0 then timer(d, 'deadline', '', now + meta.timeout) end
if meta.batches then open_batch(d, meta.entries) end
for _, name in ipairs(meta.batches and {} or meta.entries) do arrive(d, name, -1, true, {}) end
step(d)
return reply('started')
