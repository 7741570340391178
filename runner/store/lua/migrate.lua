-- Migrate waiting runs to other shapes: all of them, or none when one has moved since it was read.
--
-- Keys touched: r:<run> and its parts (records replaced, what nodes left under other names), g:<fingerprint>
--   of the old and the new shape (count their runs), runs:*, open:*, timers, notices;
--   early, early:<door>; the parent's r:<run>; those of child runs that stop; queues.
-- Arguments: 6 nonce, then each run, a parent before its children (parts/moves.lua).
-- Words: "migrated" (a repeat too), "moved", "unknown", "unknown_graph".
-- include: moves
-- include: reply
local runs, repeated, place, move = {}, true, 7, nil
while ARGV[place] do
  move, place = read_move(place)
  runs[#runs + 1] = move
end
for _, move in ipairs(runs) do
  local d = open(move.run)
  if not d then return {'unknown'} end
  repeated = repeated and redis.call('HGET', d.key, 'again') == ARGV[6]
end
if repeated then return {'migrated'} end
for _, move in ipairs(runs) do
  local run = open(move.run).run
  if redis.call('HEXISTS', prefix .. 'g:' .. move.fp, 'meta') == 0 then return {'unknown_graph'} end
  local waits = run.status == 'interrupted' or run.status == 'needs_migration'
  if not waits or run.events ~= move.events then return {'moved'} end
end
for _, move in ipairs(runs) do
  -- Opened again: what was done to the runs before this one may have written in it.
  local d = open(move.run)
  erase(d, move.undone, move.forgets)
  rename_all(d, move)
  reshape(d, move)
  redis.call('HSET', d.key, 'again', ARGV[6])
  d.run.active, d.run.waiting, d.run.held, d.run.lock, d.run.started = 0, 0, 0, '', move.started
  tell_moves(d, move)
  put_records(d, move.records)
  d.run.started = move.started
  step(d)
  follow_all()
end
return reply('migrated')
