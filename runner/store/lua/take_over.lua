-- Take the entries of streams that were handed to a reader and not done since, because it is gone or could not apply
-- them. All readers have one name, so only the age shows it.
--
-- Keys touched: the streams, which are the script's keys: in a cluster one at a time.
-- Arguments: 1 group, 2 reader, 3 ms since they were handed out, 4 number of entries of each stream, then for each
--   stream the place at which to continue.
-- Words: for each stream the reply of XAUTOCLAIM: the place at which to continue, then the entries.
local taken = {}
for place, stream in ipairs(KEYS) do
  taken[place] =
    redis.call('XAUTOCLAIM', stream, ARGV[1], ARGV[2], ARGV[3], ARGV[4 + place], 'COUNT', ARGV[4])
end
return taken
