-- Keep a large value of a run, once for the run and all runs around and inside it.
--
-- Keys touched: r:<run> (its root, read), r:<root> (size), r:<root>:b.
-- Arguments: 6 run, 7 digest of the value, 8 the value.
-- Words: "shelved" and the root; "unknown" where there is no such run any more; "full" and two sizes
--   (parts/size.lua).
-- include: size
local root, run = unpack(redis.call('HMGET', prefix .. 'r:' .. ARGV[6], 'root', 'run'))
root = root or run and ARGV[6]
local left = root and redis.call('PTTL', prefix .. 'r:' .. root) or -2
if left == -2 then return {'unknown'} end
local key = prefix .. 'r:' .. root .. ':b'
if redis.call('HEXISTS', key, ARGV[7]) == 0 then
  local refused = full(root, not run:find(' %-$'), large_bytes(ARGV[8]))
  if refused then return refused end
  redis.call('HSET', key, ARGV[7], ARGV[8])
  grow(root, large_bytes(ARGV[8]))
end
if left >= 0 then redis.call('PEXPIRE', key, left) end
return {'shelved', root}
