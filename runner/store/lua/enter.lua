-- Write a worker's sign of life, with the server's time.
--
-- Keys touched: workers, which is the script's key.
-- Arguments: 1 worker and process, 2 its description (JSON object), 3 its own time in ms.
-- Words: "new" if the worker was not listed, otherwise none.
-- A server whose memory is full refuses a script at its first write, unless that can only free memory.
redis.call('HDEL', KEYS[1], '')
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local seen = string.format(',"seen":%.0f,"ahead":%.0f}', now, ARGV[3] - now)
local added = redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]:sub(1, -2) .. seen)
return added == 1 and {'new'} or {}
