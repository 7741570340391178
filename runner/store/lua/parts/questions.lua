-- Questions to people: opened, closed, withdrawn.
-- include: change
-- include: early
-- include: indexes
-- include: size

-- "" for a question never asked, otherwise open, answered, expired or withdrawn.
local function standing(d, id)
  local decided = redis.call('HGET', d.key, 'd:' .. short_id(id))
  if decided then return decided:match('^%a+') end
  return redis.call('HEXISTS', d.key, 'i:' .. short_id(id)) == 1 and 'open' or ''
end

-- Nothing will happen to a question by time.
local function quiet(d, id)
  timer(d, 'expire', id, false)
  timer(d, 'remind', id, false)
end

local function withdraw(d, name, visit, ids)
  for _, id in ipairs(ids) do
    d.closed[id] = 'withdrawn'
    quiet(d, id)
    announce(d, 'interrupt.withdrawn', name, visit, id)
  end
end

-- Write a question when its event is numbered: seq, asked and expiry in ms, then JSON as it came; beside
-- it in w:<id> what time does to it (see by_time), where that is anything but to wake its node.
local function write_question(d, event)
  local id, question = event.detail, event.question
  local expires = question.expires > 0 and now + question.expires or 0
  local field, ids = 'q:' .. event.node, nil
  -- A node that a migration gives its old name back asks what it asked there.
  local was = json_bytes(d.key, id) + redis.call('HSTRLEN', d.key, 'w:' .. id)
  grow(d.root, #question.json + #question.by_time - was)
  redis.call('HSET', d.key, 'i:' .. short_id(id), table.concat({d.run.events, now, expires, question.json}, ' '))
  redis.call('HDEL', d.key, 'd:' .. short_id(id), 'w:' .. id)
  if question.by_time ~= '' then redis.call('HSET', d.key, 'w:' .. id, question.by_time) end
  list_open(d.key, id, question.json)
  hand_early(d.id, id)
  ids = redis.call('HGET', d.key, field)
  ids = ids and cjson.decode(ids) or {event.visit}
  if ids[1] ~= event.visit then ids = {event.visit} end
  for _, other in ipairs(ids) do if other == id then return end end
  ids[#ids + 1] = id
  redis.call('HSET', d.key, field, cjson.encode(ids))
end

local function write_closed(d)
  for id, status in pairs(d.closed) do
    redis.call('HSET', d.key, 'd:' .. short_id(id), status .. ' ' .. now .. '  ')
    list_closed(d.key, id)
  end
end
