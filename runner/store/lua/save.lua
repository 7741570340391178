-- Checkpoint what a running visit keeps.
--
-- Keys touched: r:<run> (read), r:<run>:s (document), r:<run>:m (messages), r:<root> (size).
-- Arguments: 5 run, 6 node, 7 visit, 8 fence, 9 ... what is kept (see parts/kept.lua).
-- Words: "saved", "stale"; "full" and two sizes (parts/size.lua).
-- include: held
-- include: kept
local key, name = prefix .. 'r:' .. ARGV[5], ARGV[6]
local found = redis.call('HMGET', key, 'n:' .. name, 'root', 'run')
local record = read_node(found[1])
if not holds(record, tonumber(ARGV[7]), tonumber(ARGV[8])) then return {'stale'} end
local bytes, had = kept_bytes(key, name, 9)
local refused = full(found[2], not found[3]:find(' %-$'), bytes)
if refused then return refused end
grow(found[2], bytes)
keep(key, name, 9, had)
return {'saved'}
