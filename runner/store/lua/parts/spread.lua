-- Carry a settled node's arrivals as far as they settle other nodes.
-- include: turn
local function count_settled(d, name, settled)
  for _, number in ipairs(shape(d, 'n:' .. name).loops) do
    local count = loop(d, number).settled + 1
    set_loop(d, number, {settled = count})
    if count == shape(d, 'l:' .. number).size then turn(d, number, settled) end
  end
end

local function spread(d, first)
  local todo, next_one = {first}, 1
  while todo[next_one] do
    local name = todo[next_one]
    local edges, record = shape(d, 'o:' .. name), node(d, name)
    next_one = next_one + 1
    load(d, edges)
    for place, edge in ipairs(edges) do
      local live, kind = record.edges:sub(place, place) == '1', edge[2]
      if kind == 'forward' then
        arrive(d, edge[1], edge[3], live, todo)
      elseif live and kind == 'back' then
        set_loop(d, edge[4], {asked = append(loop(d, edge[4]).asked, {name, record.visit})})
      elseif live and kind == 'exit' then
        leave(d, name, place - 1, edge, todo)
      end
    end
    count_settled(d, name, todo)
  end
end
