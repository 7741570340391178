-- A stopped map cancels its idle items, and a map goes on.
-- include: items
local function drop_items(d, name)
  local items = map(d, name)
  local last = math.min(items.next, items.swept + MOST)
  fetch_items(d, name, items.swept, last)
  for index = items.swept, last - 1 do
    local item = name .. '[' .. index .. ']'
    local record = node(d, item)
    if record.visit == items.visit and IDLE[record.status] then cancel_idle(d, item) end
  end
  set_map(d, name, {swept = last})
  return last - items.swept == MOST
end

local function move_map(d, name)
  local record, more = node(d, name), false
  if d.run.stopping ~= '' or not record.items then return end
  if map(d, name).stopped == 1 then more = drop_items(d, name) else more = begin_items(d, name) end
  local items = map(d, name)
  local busy = items.stopped == 1 or items.next < items.total
  if items.active + items.waiting == 0 and (items.stopped == 1 or not busy) then return ring(d, name, {}) end
  if more then timer(d, 'map', name, now) end
  -- Between two steps, no item may be at work although the map is not done: so it counts itself.
  if busy ~= record.busy then change(d, name, {busy = busy}) end
end

local function move_maps(d)
  local names = {}
  for name in pairs(d.moved) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do move_map(d, name) end
end
