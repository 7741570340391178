-- Make a stored graph shape the current one under its name.
--
-- Keys touched: layout (set once), graphs (name -> fingerprint), g:<fingerprint> (the current shape loses
--   its expiry, the previous one gets an expiry if no run uses it);
--   timers (for a new shape, one for each of the first 10,000 keys for which runs wait).
-- Arguments: 6 name, 7 fingerprint, 8 "1" to replace the current shape of that name, 9 number of the layout,
--   10 the most open runs of a key.
-- Words: "published", then the current fingerprint; "missing" if the shape must be written first.
-- include: settings
local name, fingerprint = ARGV[6], ARGV[7]
if redis.call('EXISTS', prefix .. 'g:' .. fingerprint) == 0 then return {'missing'} end
local current, other = fingerprint, redis.call('HGET', prefix .. 'graphs', name)
if other and ARGV[8] ~= '1' then current, other = other, fingerprint end
redis.call('SETNX', prefix .. 'layout', ARGV[9])
redis.call('HSET', prefix .. 'graphs', name, current)
redis.call('PERSIST', prefix .. 'g:' .. current)
if other and other ~= current then
  local key = prefix .. 'g:' .. other
  if retention > 0 and tonumber(redis.call('HGET', key, 'runs') or 0) <= 0 then
    redis.call('PEXPIRE', key, retention)
  end
end
if current ~= other then
  local graph = name:gsub(':', '//')
  for _, key in ipairs(redis.call('ZRANGE', prefix .. 'key:w:' .. graph, 0, 9999)) do
    redis.call('ZADD', prefix .. 'timers', now, 'admit|' .. ARGV[10] .. '|' .. graph .. ':' .. key)
  end
end
return {'published', current}
