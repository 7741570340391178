-- Carry a settled node's arrivals as far as they settle other nodes.
-- include: turn
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
    local around = shape(d, 'n:' .. name).loops[1]
    if around then count_settled(d, around, 1, todo) end
  end
end
