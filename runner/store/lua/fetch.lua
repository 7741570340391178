-- Read nodes as they stand, with their latest output and entry, for conditions.
--
-- Keys touched (read only): r:<run>.
-- Arguments: 6 run, 7 ... nodes.
-- Words: "found", then for each node its record, output or nil, entry or nil; or "unknown".
-- include: draft
local d = open(ARGV[6])
if not d then return {'unknown'} end
local said = {'found'}
for place = 7, #ARGV do
  local record = node(d, ARGV[place])
  local at = ARGV[place] .. '.' .. record.visit
  said[#said + 1] = write_node(record)
  said[#said + 1] = redis.call('HGET', d.key, 'o:' .. at)
  said[#said + 1] = redis.call('HGET', d.key, 'x:' .. at)
end
return said
