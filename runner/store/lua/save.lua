-- Checkpoint what a running visit keeps.
--
-- Keys touched: r:<run> (document), r:<run>:m (messages), r:<root> (size).
-- Arguments: 6 run, 7 node, 8 visit, 9 fence, 10 ... what is kept (see parts/kept.lua).
-- Words: "saved", "stale"; "full" and two sizes (parts/size.lua).
-- include: ownership
-- include: kept
local key, name = prefix .. 'r:' .. ARGV[6], ARGV[7]
local fields = redis.call('HMGET', key, 'n:' .. name, 'root', 'run')
local record = read_node(fields[1])
if not holds(record, tonumber(ARGV[8]), tonumber(ARGV[9])) then return {'stale'} end
local bytes, had = kept_bytes(key, name, 10)
local root = fields[2] or ARGV[6]
local refused = full(root, not fields[3]:find(' %-$'), bytes)
if refused then return refused end
grow(root, bytes)
keep(key, name, 10, had)
return {'saved'}
