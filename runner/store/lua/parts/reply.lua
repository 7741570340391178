-- The end of a script: what follows for other runs, then the doorbells, pushed or returned.
-- include: doorbells
-- include: follow
local function reply(word)
  follow_all()
  return ring_all(word)
end
