-- Take ended runs that the archive is to have; no other worker gets them for a while. It also notes that there
-- is an archive, for which ended runs are kept from now on.
--
-- Keys touched: archive, unarchived, timers, r:<run> (read); of a run that waited too long dead, and what its expiry
--   touches: r:<run> and its parts, idem:<graph>:<key>, retiring, retired.
-- Arguments: 6 how many at most, 7 ms for which fewer than that wait for others, 8 ms for which those taken are
--   the caller's, 9 ms after its end for which a run waits, and for which this is taken to be an archive,
--   10 where the archive is, 11 why the caller's last ones could not be archived, or "".
-- Words: "archivable", then runs.
-- include: unarchived
-- include: room
local LONGEST_DELAY = 3600000
local limit, pause, mine, hold = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
make_room()
redis.call('HSET', prefix .. 'archive', 'place', ARGV[10], 'at', now, 'problem', ARGV[11])
redis.call('ZADD', prefix .. 'timers', now + hold, 'archive||')

local due = redis.call('ZRANGE', prefix .. 'unarchived', '-inf', now, 'BYSCORE', 'LIMIT', 0, limit, 'WITHSCORES')
if #due < 2 * limit and (#due == 0 or tonumber(due[2]) + pause > now) then return {'archivable'} end
local runs = {'archivable'}
for place = 1, #due, 2 do
  local run = due[place]
  local waited = now - (tonumber(redis.call('HGET', prefix .. 'r:' .. run, 'ended')) or now)
  if waited > hold then
    give_up(run, 'it could not be written')
  else
    -- One that fails is tried again later and later.
    redis.call('ZADD', prefix .. 'unarchived', now + math.min(math.max(mine, waited / 8), LONGEST_DELAY), run)
    runs[#runs + 1] = run
  end
end
return runs
