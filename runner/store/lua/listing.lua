-- Read the entries after a place in several listings, as if they were one.
--
-- Keys touched (read): runs:*, open:*.
-- Arguments: 6 "1" for the newest first, 7 lowest and 8 highest time, 9 the time of that place or "", 10 how many,
--   then the listings.
-- Words: "listing", then the entries of that time, each followed by its time, and after "" the next entries, at least
--   as many as asked for, if so many exist.
-- include: settings
local newest, low, high, place, count = ARGV[6] == '1', ARGV[7], ARGV[8], ARGV[9], tonumber(ARGV[10])
local words, rest, times = {'listing'}, {}, {}
if place ~= '' then
  if newest then high = '(' .. place else low = '(' .. place end
end
for number = 11, #ARGV do
  local key, entries = prefix .. ARGV[number], nil
  if place ~= '' then
    for _, word in ipairs(redis.call('ZRANGE', key, place, place, 'BYSCORE', 'WITHSCORES')) do words[#words + 1] = word end
  end
  if newest then
    entries = redis.call('ZRANGE', key, high, low, 'BYSCORE', 'REV', 'LIMIT', 0, count, 'WITHSCORES')
  else
    entries = redis.call('ZRANGE', key, low, high, 'BYSCORE', 'LIMIT', 0, count, 'WITHSCORES')
  end
  for each = 1, #entries, 2 do
    rest[#rest + 1], rest[#rest + 2] = entries[each], entries[each + 1]
    times[#times + 1] = tonumber(entries[each + 1])
  end
  -- The following listings are read only up to the last of these entries.
  if #entries > 0 and #times >= count then
    if newest then table.sort(times, function(one, other) return one > other end) else table.sort(times) end
    for each = count + 1, #times do times[each] = nil end
    local last = ('%.0f'):format(times[count])
    if newest then low = last else high = last end
  end
end
words[#words + 1] = ''
for _, word in ipairs(rest) do words[#words + 1] = word end
return words
