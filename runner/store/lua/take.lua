-- Give a ready visit to one worker, which knows its graph and names the fields of the run that the node needs.
-- The script knows the fence; anything unusual is left to a transaction (store/redis/requests.py).
--
-- Keys touched: r:<run> (the node, counters), timers, r:<run>:e; r:<root> and its :e; read: r:<run> (inputs,
--   answers), r:<run>:f (an item) and :m (messages that the node kept).
-- Arguments: 6 run, 7 node, 8 visit, 9 attempt, 10 nonce, 11 the fence's increment, 12 the graph's presumed
--   fingerprint, 13 field of an item in :f or "", 14 ... fields of r:<run>: for an item
--   the record of its map first.
-- Words: "claimed" (also for a repeat with the same nonce), followed by: node's record, parent or "-", counters of
--   the run, values of those fields; then if any exists: item or nil, ids of the visit's questions or nil, those
--   questions, their decisions, the node's checkpoint: document, task of its own, messages; and the votes on each
--   question and field `audit`, if one was decided by votes. Or "graph" and field `of`, if the run has another graph;
--   "stale"; "other" if a transaction must decide.
-- include: settings
-- include: echo

-- A question's id without its run's id, as used in the names of the run's fields.
local function short_id(id) return id:match('^[^.]*%.(.*)$') or id end

local MOST_VOTES = 1000  -- the worker reads more
local MOST_MESSAGES = 100000  -- no agent has more, and a damaged count would hold up the whole server
local ENDED = {completed = true, failed = true, skipped = true, waiting = true}
local run, name, visit, nonce = ARGV[6], ARGV[7], ARGV[8], ARGV[10]
local key = prefix .. 'r:' .. run
local found = redis.call('HMGET', key, 'n:' .. name, 'run', 'of', 'q:' .. name, 'k:' .. name, unpack(ARGV, 14))
if not found[1] then return {'other'} end
local fp, parent = found[3]:match('@of(fingerprint parent)')
if fp ~= ARGV[12] then return {'graph', found[3]} end
local status, number, attempt, fence, stamp, edges, own_nonce, rest =
  found[1]:match('@node(status visit attempt fence stamp edges nonce rest)')
local counters, event = found[2]:match('@run(status+started events stopping=-)')
if ENDED[status] or number ~= visit or attempt ~= ARGV[9] or (status == 'running' and own_nonce ~= nonce) then
  return {'stale'}
end
if not event then return {'other'} end
if ARGV[13] ~= '' and not (found[6] or ''):find('@map(stopped=0)') then return {'other'} end
local record = found[1]
if status == 'ready' then
  if rest:find('"[gru]') or rest:find('"since', 1, true) then
    local fields = cjson.decode(rest)
    if fields.since or fields.granted then return {'other'} end
    fields.unseen, fields.rings = nil, nil
    rest = next(fields) and cjson.encode(fields) or ''
  end
  event = event + 1
  record = 'running ' .. visit .. ' ' .. attempt .. ' ' .. fence + ARGV[11] .. ' ' .. stamp .. ' ' .. edges .. ' '
    .. nonce .. ' ' .. rest
  redis.call('HSET', key, 'n:' .. name, record, 'run', counters .. ' ' .. event .. ' -')
  local begun = {kind = 'node.started', letter = 's', visit = visit, node = name, detail = attempt, data = by_worker(nonce)}
  write_event(key, event, begun, name)
  if parent ~= '-' then echo(root_of(key), begun) end
  redis.call('ZADD', prefix .. 'timers', now + lease, 'node|' .. run .. '|' .. name)
elseif status ~= 'running' then
  return {'other'}
end

local asked = found[4] and cjson.decode(found[4])
asked = asked and asked[1] == tonumber(visit) and asked
local last, extras, votes = #ARGV - 8, 5, {}
if not (asked or found[5] or ARGV[13] ~= '') then return {'claimed', record, parent, counters, unpack(found, 6, last)} end
for place = last + 1, last + 5 do found[place] = false end
if ARGV[13] ~= '' then found[last + 1] = redis.call('HGET', key .. ':f', ARGV[13]) end
if asked then
  table.remove(asked, 1)
  local questions, decisions = {}, {}
  for place, id in ipairs(asked) do
    questions[place], decisions[place] = 'i:' .. short_id(id), 'd:' .. short_id(id)
  end
  found[last + 2], found[last + 3] = asked, redis.call('HMGET', key, unpack(questions))
  found[last + 4] = redis.call('HMGET', key, unpack(decisions))
  for place, decision in ipairs(found[last + 4]) do
    local text = decision and decision:find('"decision":"', 1, true)
      and redis.call('HGET', key, 'v:' .. short_id(asked[place]))
    local count = text and tonumber(text:match('"votes":(%d+)')) or 0
    if count > 0 and count <= MOST_VOTES then
      local names = {}
      for number = 1, count do names[number] = 'v:' .. short_id(asked[place]) .. '|' .. number end
      votes[place] = redis.call('HMGET', key, unpack(names))
      extras = 7
    else
      votes[place] = false
    end
  end
end
if found[5] then
  local messages, count = {}, tonumber(redis.call('HGET', key .. ':m', '#' .. name) or 0)
  count = math.min(count, MOST_MESSAGES)
  for first = 1, count, 1000 do
    local names = {}
    for place = first, math.min(first + 999, count) do names[#names + 1] = place .. '.' .. name end
    for _, message in ipairs(redis.call('HMGET', key .. ':m', unpack(names))) do messages[#messages + 1] = message end
  end
  local own_task = redis.call('HGET', key, 't:' .. name .. '.' .. visit)
  found[last + 5] = {found[5] ~= '1' and found[5], own_task, messages}
end
found[last + 6] = votes
if extras == 7 then found[last + 7] = redis.call('HGET', key, 'audit') end
return {'claimed', record, parent, counters, unpack(found, 6, last + extras)}
