-- Read the read set of a transaction, all at one moment: see redis/transaction/__init__.py.
--
-- Keys touched (read only): the keys that the arguments name.
-- Arguments: 6 ... commands that only read, each after its number of arguments: name, key without prefix,
--   arguments.
-- Words: the time in ms, then the reply of each.
-- include: settings
local words, place = {('%.0f'):format(now)}, 6
while ARGV[place] do
  local last = place + tonumber(ARGV[place])
  words[#words + 1] = redis.call(ARGV[place + 1], prefix .. ARGV[place + 2], unpack(ARGV, place + 3, last))
  place = last + 1
end
return words
