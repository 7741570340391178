-- Loops: leaving one, beginning its next round, ending it.
-- include: arrive

-- Take an edge out of a loop: it arrives the first time only.
local function leave(d, name, place, edge, settled)
  local taken = loop(d, edge[4]).taken
  for _, exit in ipairs(taken) do
    if exit[1] == name and exit[2] == place then return end
  end
  set_loop(d, edge[4], {taken = append(taken, {name, place, node(d, name).visit})})
  arrive(d, edge[1], edge[3], true, settled)
end

-- Begin a loop's next round; the loops inside start over, those around it wait for it.
local function again(d, number, loop_shape)
  local old = loop(d, number)
  set_loop(d, number, {round = old.round + 1, settled = 0, asked = {}})
  for _, inner in ipairs(loop_shape.inner) do
    set_loop(d, inner, {round = loop(d, inner).round + 1, settled = 0, asked = {}, taken = {}})
  end
  for _, outer in ipairs(loop_shape.outer) do
    set_loop(d, outer, {settled = loop(d, outer).settled - loop_shape.size})
  end
  ready(d, loop_shape.header, old.asked)
end

-- Every node of a loop has settled: begin its next round, or end it.
local function turn(d, number, settled)
  local loop_shape, taken = shape(d, 'l:' .. number), {}
  local go_on = #loop(d, number).asked > 0
  for _, outer in ipairs(loop_shape.outer) do go_on = go_on and #loop(d, outer).asked == 0 end
  if go_on then return again(d, number, loop_shape) end
  set_loop(d, number, {asked = {}})
  for _, exit in ipairs(loop(d, number).taken) do taken[exit[1] .. '\n' .. exit[2]] = true end
  for _, exit in ipairs(loop_shape.exits) do
    if not taken[exit[1] .. '\n' .. exit[2]] then
      local edge = shape(d, 'o:' .. exit[1])[exit[2] + 1]
      arrive(d, edge[1], edge[3], false, settled)
    end
  end
end
