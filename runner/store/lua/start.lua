-- Begin a run; a child run also makes its parent's node wait for it.
--
-- Keys touched: graphs, g:<fingerprint> (counts its runs), idem:<graph>:<key> (-> run id), r:<run> and
--   its parts, runs:* (indexes), timers, notices; the parent's r:<run>, queues.
-- Arguments: 6 run, 7 graph, 8 fingerprint ("": the current one), 9 task, 10 invocation state, 11 tags (JSON),
--   12 idempotency key or "", 13 root run or "", 14 the task to call at its end or "",
--   15 the trace that it belongs to or "", then for a child: 16 parent run, 17 node, 18 visit, 19 fence.
-- Words: "started", "exists" (and that run's id), "unknown_graph"; for a child also "stale", "cancelled";
--   "full" and two sizes (parts/size.lua).
-- include: reply
-- include: delegate
-- include: size
-- include: arrive
-- include: begin
local run, graph, fp = ARGV[6], ARGV[7], ARGV[8]
if fp == '' then fp = redis.call('HGET', prefix .. 'graphs', graph) end
if not fp or redis.call('HEXISTS', prefix .. 'g:' .. fp, 'meta') == 0 then return {'unknown_graph'} end
local key, idem = prefix .. 'r:' .. run, ''
if ARGV[12] ~= '' then
  -- The names of no graph have "//": so the first colon ends them, whatever else has colons.
  idem = prefix .. 'idem:' .. graph:gsub(':', '//') .. ':' .. ARGV[12]
  local existing = redis.call('GET', idem)
  if existing then return {'exists', existing} end
end
if redis.call('EXISTS', key) == 1 then return {'started'} end
local root, path, above, stopping = ARGV[13] ~= '' and ARGV[13] or run, '', nil, false
if ARGV[16] then
  above = redis.call('HMGET', prefix .. 'r:' .. ARGV[16], 'root', 'path', 'run')
  root = ARGV[13] ~= '' and ARGV[13] or above[1] or above[3] and ARGV[16] or run
  path, stopping = (above[2] or '') .. ARGV[17] .. '/', above[3] and not above[3]:find(' %-$')
end
local bytes = RUN_BYTES + #ARGV[9] + #ARGV[10] + #ARGV[11]
local refused = full(root, stopping, bytes)
if refused then return refused end
if ARGV[16] then
  local word = delegate(ARGV[16], ARGV[17], tonumber(ARGV[18]), tonumber(ARGV[19]), run)
  if word ~= 'delegated' then return reply(word) end
  follow_all()
  redis.call('RPUSH', prefix .. 'r:' .. ARGV[16] .. ':c', run)
end
if idem ~= '' then redis.call('SET', idem, run) end
local d = begin({run = run, graph = graph, fp = fp, parent = ARGV[16], parent_node = ARGV[17], root = root, path = path,
  task = ARGV[9], state = ARGV[10], tags = ARGV[11], idem = idem,
  on_end = ARGV[14], trace = ARGV[15]})
grow(root, bytes)
local meta = shape(d, 'meta')
if meta.timeout > 0 then timer(d, 'deadline', '', now + meta.timeout) end
for _, name in ipairs(meta.entries) do arrive(d, name, -1, true, {}) end
step(d)
return reply('started')
