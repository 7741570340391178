-- A question has waited for long: its watchers are reminded, again and again until it is answered.
-- include: conclude
local MOST_REMINDERS = 100

-- When the next one is due, after `count` of them; after an outage one stands for all that were missed.
local function next_reminder(reminds, asked, count)
  local kind, times = reminds:match('^(%a+) (.*)$')
  if kind == 'every' then return count < MOST_REMINDERS and now + tonumber(times) end
  for delay in times:gmatch('%d+') do
    if asked + tonumber(delay) > now then return asked + tonumber(delay) end
  end
end

-- The question is written again with the count of its reminders before it.
local function remind(d, id)
  local name, visit = id:match('^[^.]+%.(.*)%.(%d+)%.[^.]*$')
  local head, count, json = redis.call('HGET', d.key, 'i:' .. short_id(id)):match('^(%d+ %d+ %d+) ?(%d*) ({.*)$')
  local asked, expires = head:match('^%d+ (%d+) (%d+)$')
  if tonumber(expires) > 0 and now >= tonumber(expires) then return end
  count = (tonumber(count) or 0) + 1
  redis.call('HSET', d.key, 'i:' .. short_id(id), table.concat({head, count, json}, ' '))
  announce(d, 'interrupt.reminded', name, visit, id, '{"count":' .. count .. '}')
  d.events[#d.events].reminds = json
  local again = next_reminder(by_time(d, id), tonumber(asked), count)
  if again then timer(d, 'remind', id, again) end
end
