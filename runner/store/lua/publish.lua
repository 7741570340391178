-- Make a stored graph shape the current one under its name.
--
-- Keys touched: layout (set once), graphs (name -> fingerprint), g:<fingerprint> (the shape; loses its
--   expiry), and that of the shape it replaces, which expires when no run uses it.
-- Arguments: 6 name, 7 fingerprint, 8 number of the layout.
-- Words: "published"; "missing" when the shape must be written first.
-- include: settings
local name, fingerprint = ARGV[6], ARGV[7]
local shape_key = prefix .. 'g:' .. fingerprint
if redis.call('EXISTS', shape_key) == 0 then return {'missing'} end
local old = redis.call('HGET', prefix .. 'graphs', name)
redis.call('SETNX', prefix .. 'layout', ARGV[8])
redis.call('HSET', prefix .. 'graphs', name, fingerprint)
redis.call('PERSIST', shape_key)
if old and old ~= fingerprint then
  local old_key = prefix .. 'g:' .. old
  if retention > 0 and tonumber(redis.call('HGET', old_key, 'runs') or 0) <= 0 then
    redis.call('PEXPIRE', old_key, retention)
  end
end
return {'published'}
