-- Checkpoint what a running visit keeps.
--
-- Keys touched: r:<run> (read), r:<run>:s (document), r:<run>:m (messages).
-- Arguments: 5 run, 6 node, 7 visit, 8 fence, 9 ... what is kept (see parts/kept.lua).
-- Words: "saved", "stale".
-- include: held
-- include: kept
local key, name = prefix .. 'r:' .. ARGV[5], ARGV[6]
local record = read_node(redis.call('HGET', key, 'n:' .. name))
if not holds(record, tonumber(ARGV[7]), tonumber(ARGV[8])) then return {'stale'} end
keep(key, name, 9)
return {'saved'}
