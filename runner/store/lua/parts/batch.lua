-- Batches: no node starts before all of the batch before have settled; see step.lua for their end.
-- include: ring

-- Make the nodes of a batch ready. An item is a node, or a node with the (node, visit) of its inputs.
local function open_batch(d, following)
  local begun = {}
  for place, item in ipairs(following) do
    local name, via = item, {}
    if type(item) == 'table' then name, via = item[1], item[2] end
    local visit = node(d, name).visit + 1
    ring(d, name, fresh({visit = visit, attempt = 1, via = via, edges = ''}))
    begun[place] = {name, visit}
  end
  d.run.started = d.run.started + #begun
  change(d, '@batch', {via = begun})
end
