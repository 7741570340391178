-- Remove an ended run now; the graphs inside it go with the next sweeps.
--
-- Keys touched: r:<run> and its parts, idem:<graph>:<key>, runs:*, retired (without it),
--   retiring (its children).
-- Arguments: 6 run.
-- Words: "removed", "goes_on" (it has not ended, or must still tell so), "inside" (another run), "unknown".
-- include: room
-- include: draft
-- include: removed
local d = open(ARGV[6])
if not d then return {'unknown'} end
if d.run.parent ~= '' then return {'inside'} end
if not ended(d.id) then return {'goes_on'} end
make_room()
remove_run(d.id)
return {'removed'}
