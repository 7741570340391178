-- Change the head of the audit's tree, or nothing if another worker has changed it meanwhile.
--
-- Keys touched: audit:head, audit:leaves, audit (trimmed).
-- Arguments: 6 size, first, number signed and epoch as the caller has read them; 10 number of the head's fields to set,
--   then each with its value; number of leaves to add, then these; number of archived entries to remove, and the id
--   of the first step that stays.
-- Words: "sealed", "moved".
-- include: settings
local key, place = prefix .. 'audit:head', 11
for nth, value in ipairs(redis.call('HMGET', key, 'size', 'first', 'signed', 'epoch')) do
  if (value or '0') ~= ARGV[5 + nth] then return {'moved'} end
end
local fields, leaves = {}, {}
for nth = 1, 2 * tonumber(ARGV[10]) do fields[nth], place = ARGV[place], place + 1 end
local count = tonumber(ARGV[place])
for nth = 1, count do leaves[nth] = ARGV[place + nth] end
place = place + count + 1
redis.call('HSET', key, unpack(fields))
many('RPUSH', prefix .. 'audit:leaves', leaves)
local gone = tonumber(ARGV[place])
if gone > 0 then
  redis.call('LTRIM', prefix .. 'audit:leaves', gone, -1)
  redis.call('XTRIM', prefix .. 'audit', 'MINID', ARGV[place + 1])
end
return {'sealed'}
