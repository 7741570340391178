-- Find the open questions of a run's own nodes, except items of maps, which are in the listing of its family.
--
-- Keys touched: r:<run> (read).
-- Arguments: 6 run.
-- Words: "asked", then for each question its id and the time at which it was asked (ms).
-- include: settings
local key, asked, decided, fields, words = prefix .. 'r:' .. ARGV[6], {}, {}, {}, {'asked'}
for _, field in ipairs(redis.call('HKEYS', key)) do
  local kind = field:sub(1, 2)
  if kind == 'd:' then decided[field:sub(3)] = true end
  if kind == 'i:' and not field:find('%]%.%d+%.[^.]*$') then asked[#asked + 1] = field:sub(3) end
end
for _, id in ipairs(asked) do
  if not decided[id] then
    words[#words + 1] = ARGV[6] .. '.' .. id
    words[#words + 1] = redis.call('HGET', key, 'i:' .. id):match('^%d+ (%d+)')
  end
end
return words
