-- Apply a plan that a worker has made for one node of a run, from its claim's reads: validate them, count
-- arrivals, write. Anything else is left to a transaction (commit.lua).
--
-- Keys touched: r:<run> (nodes, loops, maps, arrivals, counters, results), r:<run>:e, timers, queues; r:<root>
--   (size) and its :e.
-- Arguments: 6 run, 7 graph, 8 Celery task that ends here ("": none), 9 bytes by which the run grows, 10 numbers (see
--   `_HEAD` in store/redis/fast/plan_arguments.py), 11 "" or the maximum of executions, 12 "" or, to claim the next node:
--   its fence's increment, the nonce, and the priority and queue whose next doorbell may be taken if no node
--   follows (see `fetch`); then: fields that must have a value; for each arrival the fields of its count and of its node;
--   the values of the former; the arrivals
--   (numbers, see `_ARRIVAL`; node or map; first record of a node; its count if none is stored yet);
--   queues, with priority; fields to write, with value; results, which begin with the number of the
--   first event; timers to drop; timers to set, with ms from now; events (kind, visit, node, detail, data);
--   doorbells (queue by number, node, visit, attempt).
-- Words: "applied"; "outdated" if it was applied, but another template of a doorbell is stored; "follows" with node,
--   record and number of active nodes, if the only node that begins is claimed for the calling worker;
--   "fetched" with the same for a node whose doorbell was taken, the task that rang it and, for an item, the item;
--   "other" if nothing was written: something has changed, or more follows than a plan has.
-- include: follows
-- include: doorbells
-- include: echo
local ANY, ITEM, FOLLOWS = 1, 2, 4
local graph = ARGV[7]
local more_active, more_waiting, more_started, child, g1, g2, a1, a2, q1, q2, p1, p2, r1, r2, d1, d2, s1, s2, e1, e2, b1, b2 =
  ARGV[10]:byte(1, 22)
local guards, arrivals = g1 * 256 + g2, a1 * 256 + a2
local at = 13 + guards + 2 * arrivals
local own = redis.call('HMGET', key, 'run', 'size', 'lock', unpack(ARGV, 13, at - 1))
if not own[1] then return {'other'} end
local status, active, waiting, others, started, event =
  own[1]:match('@run(status active waiting held+failed started events stopping=-)')
if not status or (own[3] or '') ~= '' then return {'other'} end
for place = 1, guards do
  if (own[place + 3] or '') ~= ARGV[at + place - 1] then return {'other'} end
end
at = at + guards
local bytes, root = tonumber(ARGV[9]), child == 1 and root_of(key)
local size = (root and root.size or tonumber(own[2])) + bytes
if bytes > 0 and size > most then return {'other'} end

-- Arrivals are counted here, from all sources: the last one, or the first live one of "any", begins a node's
-- visit. The rule is `arrive` of scheduler/arrivals.py: see test_redis_does_what_the_model_says. The end of an item is
-- counted at its map, whose next item begins.
local fields, due, last, first_queue, follows = {}, {}, 0, at + 4 * arrivals, nil
local function begin(name, record, visit, queue)
  fields[last + 1], fields[last + 2], last = 'n:' .. name, record, last + 2
  due[#due + 1], due[#due + 2] = now + lease, 'node|' .. run .. '|' .. name
  local place = first_queue + 2 * queue
  bells[#bells + 1] = {run, name, visit, 1, ARGV[place], tonumber(ARGV[place + 1]), graph}
end

for place = 1, arrivals do
  local t1, t2, o1, o2, n1, n2, l1, l2, w1, w2, kind, q = ARGV[at]:byte(1, 12)
  local stamp, current, number, live, needs = t1 * 256 + t2, o1 * 256 + o2, n1 * 256 + n2, l1 * 256 + l2, w1 * 256 + w2
  local name, record, counted = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local may_follow = kind >= FOLLOWS
  if may_follow then kind = kind - FOLLOWS end
  local count, old = own[guards + 2 + 2 * place], own[guards + 3 + 2 * place]
  if kind == ITEM then
    -- `needs` is the most items that may run at once, 0 for any number. At most AFTER_ITEM (see scheduler/maps.py) begin.
    local visit, total, begun, busy, rest, failed, swept =
      (count or ''):match('@map(visit total next active waiting failed stopped=0 swept)')
    if tonumber(visit) ~= current then return {'other'} end
    total, begun, busy = tonumber(total), tonumber(begun), busy - 1
    if begun == total then
      if busy + rest == 0 then return {'other'} end
    else
      local room = needs == 0 and 2 or math.max(0, math.min(2, needs - busy))
      if begun + room >= total then return {'other'} end
      local items, records = {}, {}
      for nth = 1, room do
        items[nth] = name .. '[' .. begun + nth - 1 .. ']'
        records[nth] = 'n:' .. items[nth]
      end
      for nth, ran in ipairs(room > 0 and redis.call('HMGET', key, unpack(records)) or {}) do
        if ran then return {'other'} end
        begin(items[nth], record, current, q)
      end
      begun, busy, more_started = begun + room, busy + room, more_started - room
    end
    counted = table.concat({visit, total, begun, busy, rest, failed, 0, swept}, ' ')
  else
    local arrived, alive = number, live
    if count then
      local round, had, had_alive = count:match('^%[(%d+),(%d+),(%d+)')
      if tonumber(round) == stamp then
        arrived, alive = arrived + had, alive + had_alive
        counted = '[' .. round .. ',' .. arrived .. ',' .. alive .. ']'
      end
    end
    local visit, pending = 1, true
    if old then
      local was, number_, fence, round, nonce = old:match('@node(status visit fence stamp nonce)')
      -- After undone visits (`last` of a record) the next number differs.
      if was == 'pending' or old:find('"last":', 1, true) then return {'other'} end
      visit, pending = number_ + 1, tonumber(round) ~= current
      record = 'ready ' .. visit .. ' 1 ' .. fence .. ' ' .. current .. ' - ' .. nonce .. ' '
        .. record:match('@node(visit=1 attempt=1 fence=0 edges=- nonce=- rest)')
    end
    if pending and arrived >= needs and alive == 0 then return {'other'} end
    if pending and ((live > 0 and kind == ANY) or arrived >= needs) then
      begin(name, record, visit, q)
      if may_follow then follows = {name = name, visit = visit, record = record, place = last, ran = old} end
    end
  end
  -- A single arrival's count isn't stored: no other arrival comes to be added.
  if kind == ITEM or needs ~= 1 then
    fields[last + 1], fields[last + 2], last = ARGV[11 + guards + 2 * place], counted, last + 2
  end
  at = at + 4
end
active, waiting = active + more_active - 128 + #bells, waiting + more_waiting - 128
started = started + more_started - 128 + #bells
if ARGV[11] ~= '' and started > tonumber(ARGV[11]) then return {'other'} end
if active < 1 or status ~= 'executing' then return {'other'} end
if ARGV[12] == '' or #bells ~= 1 or b1 + b2 > 0 then follows = nil end
-- A claim must read its node's document and questions from earlier visits.
if follows and follows.ran then
  local kept = redis.call('HMGET', key, 'k:' .. follows.name, 'q:' .. follows.name)
  if kept[1] or kept[2] then follows = nil end
end
if follows then
  follows.record = running(follows.record)
  fields[follows.place] = follows.record
end

-- If no node follows, the oldest doorbell of the queue is taken as Celery would fetch it, if it rings for a
-- node of this run without unusual state; the worker has said that no node there has limits.
local function fetch()
  local list = QUEUES_BEGIN .. queue .. (QUEUES_END[tonumber(priority)] or '')
  local bell = redis.call('RPOP', list)
  if not bell then return end
  local _, at = bell:find('"id":"' .. run .. '.', 1, true)
  local name, visit, attempt = bell:match('^([^"\\]+)%.(%d+)%.(%d+)"', (at or #bell) + 1)
  local owner, index = (name or ''):match('^(.*)%[(%d+)%]$')
  local found = name and name:byte() ~= 64 and bell:find('"task":"runner.node"', 1, true)
    and redis.call('HMGET', key, 'n:' .. name, 'q:' .. name, 'k:' .. name, 'm:' .. (owner or ''))
  -- A record that ends here has no questions or lost leases, or anything else that only the script of claims reads.
  local fresh = found and found[1] and not (found[2] or found[3])
    and found[1]:match('@node(status=ready visit+attempt rest=)') == visit .. ' ' .. attempt
  if not fresh or (owner and not (found[4] or ''):find('@map(stopped=0)')) then
    redis.call('RPUSH', list, bell)
    return
  end
  local item = owner and redis.call('HGET', key .. ':f', owner .. '.' .. visit .. '.' .. index)
  local task = bell:match('"parent_id":"([^"\\]*)"', at) or ''
  return {name = name, visit = visit, attempt = attempt, record = running(found[1]), task = task, item = item}
end

at = first_queue + 2 * (q1 * 256 + q2)
for place = at, at + 2 * (p1 * 256 + p2) - 1 do
  last = last + 1
  fields[last] = ARGV[place]
end
at = at + 2 * (p1 * 256 + p2)
for place = at, at + 2 * (r1 * 256 + r2) - 1, 2 do
  fields[last + 1], fields[last + 2], last = ARGV[place], event + 1 .. ' ' .. ARGV[place + 1], last + 2
end
at = at + 2 * (r1 * 256 + r2)
local first_set = at + d1 * 256 + d2
if first_set > at then redis.call('ZREM', timers, unpack(ARGV, at, first_set - 1)) end  -- first: see parts/make_room.lua
at = first_set + 2 * (s1 * 256 + s2)
for place = first_set, at - 1, 2 do due[#due + 1], due[#due + 2] = now + ARGV[place], ARGV[place + 1] end
for _ = 1, e1 * 256 + e2 do
  event = event + 1
  local data = ARGV[at + 4] ~= '' and ARGV[at + 4] or nil
  local said = {kind = ARGV[at], visit = ARGV[at + 1], node = ARGV[at + 2], detail = ARGV[at + 3], data = data}
  write_event(key, event, said, said.node)
  if root then
    echo(root, said, bytes)
    root, bytes = root_of(key), 0
  end
  at = at + 5
end
for _ = 1, b1 * 256 + b2 do
  local place = first_queue + 2 * ARGV[at]
  bells[#bells + 1] = {run, ARGV[at + 1], tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), ARGV[place], tonumber(ARGV[place + 1]), graph}
  at = at + 4
end
if ARGV[8] ~= '' and #bells > 0 then rung_by_task(ARGV[8]) end
-- The template is a constant before this text (see redis/doorbell_template.py), unless a worker has stored another.
local shares = graph:find('\1', 1, true)
local is_known = push and #bells > 0 and not (follows or shares) and redis.call('HGET', prefix .. 'doorbell:1', 'digest') == DOORBELL
-- Like `push_all` of parts/doorbells.lua: see test_a_doorbell_is_the_same_from_a_settle_and_from_the_part.
local function ring()
  local queues = {}
  for _, bell in ipairs(bells) do
    local list = QUEUES_BEGIN .. bell[5] .. (QUEUES_END[bell[6]] or '')
    queues[list] = queues[list] or {}
    table.insert(queues[list], fill_template(values_of(bell)))
  end
  for list, messages in pairs(queues) do many('LPUSH', list, messages) end
  bells = {}
end
local fetched
if queue and queue ~= '' and not follows and push and DOORBELL and (#bells == 0 or is_known) then
  if is_known then
    redis.call('HSET', key, unpack(fields, 1, last))
    fields, last = {}, 0
    ring()
  end
  fetched = fetch()
end
if fetched then
  fields[last + 1], fields[last + 2], last = 'n:' .. fetched.name, fetched.record, last + 2
  due[#due + 1], due[#due + 2] = now + lease, 'node|' .. run .. '|' .. fetched.name
end
local claimed = follows or fetched
if claimed then
  event = event + 1
  local detail = claimed.attempt or '1'
  local begun = {kind = 'node.started', letter = 's', visit = claimed.visit, node = claimed.name, detail = detail,
    data = by_worker(nonce)}
  write_event(key, event, begun, begun.node)
  if child == 1 then echo(root_of(key), begun) end
end
fields[last + 1] = 'run'
fields[last + 2] = table.concat({status, active, waiting, others, started, event, '-'}, ' ')
if child == 0 then fields[last + 3], fields[last + 4] = 'size', size end
redis.call('HSET', key, unpack(fields))
if #due > 0 then redis.call('ZADD', timers, unpack(due)) end
if follows then return {'follows', follows.name, follows.record, active} end
if fetched then return {'fetched', fetched.name, fetched.record, active, fetched.task, fetched.item or false} end
if #bells == 0 then return {'applied'} end
if not is_known then return ring_all(push and not shares and 'outdated' or 'applied') end
ring()
return {'applied'}
