-- Restore the fields and events of a packed run before it is changed. See redis/packed_runs.py.
--
-- Keys touched: r:<run>, r:<run>:e.
-- Arguments: 6 key without prefix, 7 the packed text, 8 number of events, 9 ... events, the last first, then fields with values.
-- Words: "unpacked"; "changed" if the run no longer has that text.
-- include: make_room
local key = prefix .. ARGV[6]
local events = key .. ':e'
if redis.call('LINDEX', events, 0) ~= ARGV[7] then return {'changed'} end
make_room()
local first = 9 + ARGV[8]
local earlier, fields = {}, {}
for place = 10, first - 1 do earlier[#earlier + 1] = ARGV[place] end
for place = first, #ARGV do fields[#fields + 1] = ARGV[place] end
-- The list is never empty, so it keeps its time to live.
redis.call('LSET', events, 0, ARGV[9])
many('LPUSH', events, earlier)
many('HSET', key, fields)
return {'unpacked'}
