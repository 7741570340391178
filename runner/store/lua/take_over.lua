-- Take the entries of streams that were handed to a reader and not done since: it is gone, or could not apply
-- them. All readers have one name, so the age alone says so.
--
-- Keys touched: the streams, which are the script's keys: in a cluster one at a time.
-- Arguments: 1 group, 2 reader, 3 ms since they were handed out, 4 how many of each stream, then for each
--   stream where to go on.
-- Words: for each stream what XAUTOCLAIM replies: where to go on the next time, then the entries.
local taken = {}
for place, stream in ipairs(KEYS) do
  taken[place] =
    redis.call('XAUTOCLAIM', stream, ARGV[1], ARGV[2], ARGV[3], ARGV[4 + place], 'COUNT', ARGV[4])
end
return taken
