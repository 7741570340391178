-- Keep a large value of a run, once for the run and all runs around and inside it.
--
-- Keys touched: r:<run> (its root, read), r:<root>:b.
-- Arguments: 5 run, 6 digest of the value, 7 the value.
-- Words: "shelved" and the root; "unknown" where there is no such run any more.
-- include: settings
local root = redis.call('HGET', prefix .. 'r:' .. ARGV[5], 'root')
local left = root and redis.call('PTTL', prefix .. 'r:' .. root) or -2
if left == -2 then return {'unknown'} end
local key = prefix .. 'r:' .. root .. ':b'
redis.call('HSETNX', key, ARGV[6], ARGV[7])
if left >= 0 then redis.call('PEXPIRE', key, left) end
return {'shelved', root}
