-- The end of a script: what follows for other runs, then the doorbells, pushed or returned.
-- Returns the word, then a list (run, node, visit, attempt, queue, priority, graph) for each doorbell
-- that the caller must ring.
-- include: follow
local function plain(text)
  return (cjson.encode(tostring(text)):sub(2, -2))
end

-- A message of the task queue, by filling in the template that the workers left (see doorbell.py).
local function message(template, bell)
  local id = table.concat({bell[1], bell[2], bell[3], bell[4]}, '.')
  local said = {
    id = plain(id), correlation_id = plain(id), root_id = plain(bell[1]), queue = plain(bell[5]),
    delivery_tag = plain(id .. '@' .. time[1] .. '.' .. time[2]), priority = tostring(bell[6]),
    shadow = plain(bell[7] .. '/' .. bell[2]),
    argsrepr = plain('visit=' .. bell[3] .. ' attempt=' .. bell[4]),
  }
  return (template:gsub('\1(%l[%l_]*)\2', said))
end

local function push_all()
  local queues, template = {}, redis.call('HMGET', prefix .. 'doorbell', 'envelope',
    '0', '1', '2', '3', '4', '5', '6', '7', '8', '9')
  if not template[1] then return false end
  for _, bell in ipairs(bells) do
    local key = bell[5] .. (template[bell[6] + 2] or '')
    queues[key] = queues[key] or {}
    table.insert(queues[key], message(template[1], bell))
  end
  for key, messages in pairs(queues) do many('LPUSH', key, messages) end
  return true
end

local function reply(word)
  follow_all()
  local said = {word}
  if #bells == 0 or (push and push_all()) then return said end
  for place, bell in ipairs(bells) do said[place + 1] = bell end
  return said
end
