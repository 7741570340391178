-- Store a large value of a run, once for the run and all runs around and inside it.
--
-- Keys touched: r:<run> (its root, read), r:<root> (size), r:<root>:b.
-- Arguments: 6 run, 7 digest of the value, 8 the value, or "" to ask whether it is stored.
-- Words: "shelved" and the root; "unknown" if the run is gone; "full" and two sizes
--   (parts/size.lua); "absent" if no value was given and none is stored.
-- include: size
local root, run = unpack(redis.call('HMGET', prefix .. 'r:' .. ARGV[6], 'root', 'run'))
root = root or run and ARGV[6]
local left = root and redis.call('PTTL', prefix .. 'r:' .. root) or -2
if left == -2 then return {'unknown'} end
local key = prefix .. 'r:' .. root .. ':b'
if redis.call('HEXISTS', key, ARGV[7]) == 0 then
  if ARGV[8] == '' then return {'absent'} end
  -- It counts for its length before compression.
  local bytes = tonumber(ARGV[8]:match('^%d+'))
  local refused = full(redis.call('HGET', prefix .. 'r:' .. root, 'size'), run, bytes)
  if refused then return refused end
  redis.call('HSET', key, ARGV[7], ARGV[8])
  grow(root, bytes)
end
if left >= 0 then redis.call('PEXPIRE', key, left) end
return {'shelved', root}
