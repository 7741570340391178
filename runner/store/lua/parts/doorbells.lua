-- Doorbells: (run, node, visit, attempt, queue, priority, graph). They are pushed onto the task queue,
-- or returned after the word if no template is stored or the queue is elsewhere.
-- include: settings
-- include: fairness
-- `rung_by` is the task whose end makes this script ring, as JSON: monitors link a run's tasks by it.
local bells, rung_by = {}, 'null'

-- A text as the inside of a JSON string.
local function plain(text)
  return text:find('[%c"\\]') and cjson.encode(text):sub(2, -2) or text
end

-- The values for the places in the template of a task queue's message.
local function values_of(bell)
  local id = plain(table.concat({bell[1], bell[2], bell[3], bell[4]}, '.'))
  return {id = id, correlation_id = id, root_id = bell[1],
    delivery_tag = id .. '@' .. time[1] .. '.' .. time[2],
    queue = plain(bell[5]), priority = bell[6], parent_id = bell.has_waited and 'null' or rung_by, shadow = plain(bell[7] .. '/' .. bell[2]),
    argsrepr = 'visit=' .. bell[3] .. ' attempt=' .. bell[4]}
end

-- A message, made by filling in the template that workers left (see redis/doorbell_template.py). The number in its key
-- is the version of `values_of`.
local function message(template, places, bell)
  local values, texts = values_of(bell), {}
  for place in places:gmatch('%S+') do texts[#texts + 1] = values[place] end
  return template:format(unpack(texts))
end

local function rung_by_task(...) rung_by = '"' .. plain(table.concat({...}, '.')) .. '"' end

-- `ring` of apply.lua does the same with a constant template: see test_a_doorbell_is_the_same_from_a_settle_and_from_the_part.
local function push_all()
  local first, queues, suffixes = bells[1][6], {}, {}
  local fields = redis.call('HMGET', prefix .. 'doorbell:1', 'template', 'places', first, 'prefix')
  if not fields[1] then return false end
  suffixes[first] = fields[3] or ''
  for _, bell in ipairs(bells) do
    local priority = bell[6]
    suffixes[priority] = suffixes[priority] or redis.call('HGET', prefix .. 'doorbell:1', priority) or ''
    local key = (fields[4] or '') .. bell[5] .. suffixes[priority]
    queues[key] = queues[key] or {}
    table.insert(queues[key], message(fields[1], fields[2], bell))
  end
  for key, messages in pairs(queues) do many('LPUSH', key, messages) end
  return true
end

-- If no worker has left a template for doorbells, a sweeping worker is woken: see runner/celery/threads.py.
local function ring_all(word)
  local words = {word}
  bells = in_turn(bells)
  if #bells == 0 or (push and push_all()) then return words end
  if push and redis.call('LPUSH', prefix .. 'wake', 1) > 1 then redis.call('RPOP', prefix .. 'wake') end
  for place, bell in ipairs(bells) do words[place + 1] = bell end
  return words
end
