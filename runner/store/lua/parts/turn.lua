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

-- Begin a loop's next round; the loops inside start over.
local function again(d, number, at)
  local old = loop(d, number)
  set_loop(d, number, {round = old.round + 1, settled = 0, asked = {}})
  for _, inner in ipairs(at.inner) do
    set_loop(d, inner, {round = loop(d, inner).round + 1, settled = 0, asked = {}, taken = {}})
  end
  ready(d, at.header, old.asked)
end

local turn

-- Count nodes that have settled in a loop. It counts those of a loop inside it when that has ended.
local function count_settled(d, number, count, settled)
  count = loop(d, number).settled + count
  set_loop(d, number, {settled = count})
  if count == shape(d, 'l:' .. number).size then turn(d, number, settled) end
end

-- Every node of a loop has settled: begin its next round, or end it.
turn = function(d, number, settled)
  local at, taken = shape(d, 'l:' .. number), {}
  local go_on = #loop(d, number).asked > 0
  for _, outer in ipairs(at.outer) do go_on = go_on and #loop(d, outer).asked == 0 end
  if go_on then return again(d, number, at) end
  set_loop(d, number, {asked = {}})
  for _, exit in ipairs(loop(d, number).taken) do taken[exit[1] .. '\n' .. exit[2]] = true end
  for _, exit in ipairs(at.exits) do
    if not taken[exit[1] .. '\n' .. exit[2]] then
      local edge = shape(d, 'o:' .. exit[1])[exit[2] + 1]
      arrive(d, edge[1], edge[3], false, settled)
    end
  end
  local around, own = shape(d, 'n:' .. at.header).loops, nil
  for place, each in ipairs(around) do
    if each == number then own = place end
  end
  if around[own + 1] then count_settled(d, around[own + 1], at.size, settled) end
end
