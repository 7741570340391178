-- Note that the archive has runs: their expiry begins. One that goes on again since, or has ended again, has not.
--
-- Keys touched: unarchived; r:<run> and its parts (expiry), idem:<graph>:<key>, retiring,
--   retired.
-- Arguments: from 6 on: run, when it had ended (ms).
-- Words: "archived".
-- include: ended
-- include: room
make_room()
for place = 6, #ARGV, 2 do
  local run = ARGV[place]
  local record, ended_at = unpack(redis.call('HMGET', prefix .. 'r:' .. run, 'run', 'ended'))
  -- What is gone, or goes on, is not to be archived now; the end of a run puts it back.
  local is_final = record and FINAL[record:match('^%S+')]
  if (not is_final or ended_at == ARGV[place + 1]) and redis.call('ZREM', prefix .. 'unarchived', run) == 1 and is_final then
    retire(run)
  end
end
return {'archived'}
