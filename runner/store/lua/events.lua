-- Read a run's events after a position; if none follow, note that a reader waits for the next one.
--
-- Keys touched: r:<run>, r:<run>:e (read); r:<run>:w.
-- Arguments: 6 run, 7 number of the last known event, 8 how many, 9 ms for which the reader waits, or 0.
-- Words: "events", then the number of the first event, the events, and field and value of each question whose event
--   lacks its data; "none", then the entry of r:<run>:w after which the reader waits; "packed", then
--   the number of the run's last event, and its packed text; "unknown".
-- include: settings
-- include: waiter
local key = prefix .. 'r:' .. ARGV[6]
local events, after, wait = key .. ':e', tonumber(ARGV[7]), tonumber(ARGV[9])
local line, of = unpack(redis.call('HMGET', key, 'run', 'of'))
local last = (line or ''):match('@run(events)')
if not last then return {'unknown'} end
if of:find('@of(parent==)') and after < tonumber(last) then return {'packed', last, redis.call('LINDEX', events, 0)} end
-- The last event of the list has the run's number of events, so the other numbers follow from their places.
local gone = last - redis.call('LLEN', events)
local first = math.max(after, gone)
local list = redis.call('LRANGE', events, first - gone, first - gone + ARGV[8] - 1)
local questions = {}
for _, event in ipairs(list) do
  local name = event:match('^q\n[^\n]*\n[^\n]*\n[^\n]*\n%d+\n%.(.*)$')
  local question = name and redis.call('HGET', key, 'i:' .. name)
  if question then
    questions[#questions + 1] = 'i:' .. name
    questions[#questions + 1] = question
  end
end
if #list > 0 then return {'events', first + 1, list, questions} end
if wait == 0 then return {'none', '0-0'} end
return {'none', wait_on(key .. ':w', wait)}
