-- Remove the readers of a stream that are gone and have left nothing behind.
--
-- Keys touched: the stream (its group's list of readers). Its name is the script's one key.
-- Arguments: 1 group, 2 ms without a sign of life, 3 a reader that leaves now, or "" to look at all of them.
-- Words: "forgotten", then the names. A reader that still holds entries stays: they would go with it.
local forgotten = {'forgotten'}

local function forget(reader)
  redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], reader)
  forgotten[#forgotten + 1] = reader
end

if ARGV[3] ~= '' then
  -- One that leaves need not be looked for among many.
  if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[3]) == 0 then forget(ARGV[3]) end
  return forgotten
end
for _, fields in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local reader = {}
  for place = 1, #fields, 2 do reader[fields[place]] = fields[place + 1] end
  if reader.pending == 0 and reader.idle >= tonumber(ARGV[2]) then forget(reader.name) end
end
return forgotten
