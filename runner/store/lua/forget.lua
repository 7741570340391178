-- Remove the readers of a stream that are gone and have left nothing behind.
--
-- Keys touched: the stream (its group's list of readers). Its name is the script's one key.
-- Arguments: 1 group, 2 ms without a sign of life, 3 a reader that goes now, or "".
-- Words: "forgotten", then the names. A reader that still holds entries stays: they would go with it.
local forgotten = {'forgotten'}
for _, reader in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local at = {}
  for place = 1, #reader, 2 do at[reader[place]] = reader[place + 1] end
  if at.pending == 0 and (at.idle >= tonumber(ARGV[2]) or at.name == ARGV[3]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], at.name)
    forgotten[#forgotten + 1] = at.name
  end
end
return forgotten
