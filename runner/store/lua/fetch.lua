-- Read nodes as they stand, with their latest output and entry, for conditions.
--
-- Keys touched (read only): r:<run>.
-- Arguments: 6 run, 7 ... nodes.
-- Words: "found", then for each node its record, output or nil, entry or nil; or "unknown".
-- include: draft
local d = open(ARGV[6])
if not d then return {'unknown'} end
local words = {'found'}
for place = 7, #ARGV do
  local record = node(d, ARGV[place])
  local visit_id = ARGV[place] .. '.' .. record.visit
  words[#words + 1] = write_node(record)
  words[#words + 1] = redis.call('HGET', d.key, 'o:' .. visit_id)
  words[#words + 1] = redis.call('HGET', d.key, 'x:' .. visit_id)
end
return words
