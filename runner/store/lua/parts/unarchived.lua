-- An ended run that waited for its archive too long expires without it, and a dead letter says so.
-- include: ended
-- include: dead
local function give_up(run, why)
  redis.call('ZREM', prefix .. 'unarchived', run)
  if redis.call('EXISTS', prefix .. 'r:' .. run) == 0 then return end
  write_dead_letter(run, '', 0, 'the run expires and is not in the archive: ' .. why)
  retire(run)
end

-- No worker has looked for runs to archive for so long that there is no archive any more.
local function end_archive()
  redis.call('DEL', prefix .. 'archive')
  local runs = redis.call('ZRANGE', prefix .. 'unarchived', 0, 99)
  for _, run in ipairs(runs) do give_up(run, 'no worker writes to an archive any more') end
  if #runs > 0 then redis.call('ZADD', prefix .. 'timers', now, 'archive||') end
end
