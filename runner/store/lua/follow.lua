-- Take a step that follows from another with the general scripts: the end of a run, the next items of a map.
--
-- Keys touched: timers, r:<run> (counters) and what closing a transition touches (parts/step.lua).
-- Arguments: 6 run, 7 what: "end" or "map <node> <number>".
-- Words: "followed", "stale" when it was taken.
-- include: step
-- include: reply
local member = 'follow|' .. ARGV[6] .. '|' .. ARGV[7]
if redis.call('ZREM', prefix .. 'timers', member) == 0 then return {'stale'} end
local d = open(ARGV[6])
if not d then return {'stale'} end
d.run.active = d.run.active - 1
local name = ARGV[7]:match('^map (.*) %d+$')
if name then set_map(d, name, {}) end
step(d)
return reply('followed')
