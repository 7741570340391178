-- Read nodes as they stand, with their latest output and entry, for conditions.
--
-- Keys touched (read only): r:<run>.
-- Arguments: 5 run, 6 ... nodes.
-- Words: "found", then for each node its record, output or nil, entry or nil; or "unknown".
-- include: draft
local d = open(ARGV[5])
if not d then return {'unknown'} end
local said = {'found'}
for place = 6, #ARGV do
  local record = node(d, ARGV[place])
  local at = ARGV[place] .. '.' .. record.visit
  said[#said + 1] = write_node(record)
  said[#said + 1] = redis.call('HGET', d.key, 'o:' .. at)
  said[#said + 1] = redis.call('HGET', d.key, 'x:' .. at)
end
return said
