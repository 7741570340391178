-- Maps go on: items begin while there is room, those of a stopped map are cancelled, and when all have
-- ended the map is rung.
-- include: ring
local MOST = 500

-- Read items in one call, from `first` to before `last`.
local function fetch_items(d, name, first, last)
  local fields = {}
  for index = first, last - 1 do
    local item = name .. '[' .. index .. ']'
    if not d.nodes[item] then fields[#fields + 1] = 'n:' .. item end
  end
  fill(d.key, fields, function(field, text) d.nodes[field:sub(3)] = read_node(text) end)
end

-- An item that has completed in this visit is left alone: its map runs again without it.
local function begin_item(d, item, visit)
  local record = node(d, item)
  if record.visit ~= visit then
    ring(d, item, fresh({visit = visit, attempt = 1, crashes = 0}))
  elseif record.status == 'failed' or record.status == 'cancelled' then
    ring(d, item, fresh({attempt = record.attempt + 1, crashes = 0, uncounted = record.attempt}))
  end
end

-- Make items ready while there is room; true when one step is too short for all.
local function begin_items(d, name)
  local window, items = shape(d, 'n:' .. name).map[1], map(d, name)
  if window == 0 then window = math.huge end
  fetch_items(d, name, items.next, math.min(items.total, items.next + math.min(MOST, window - items.active)))
  for _ = 1, MOST do
    items = map(d, name)
    if items.next >= items.total or items.active >= window then return false end
    set_map(d, name, {next = items.next + 1})
    begin_item(d, name .. '[' .. items.next .. ']', items.visit)
  end
  return true
end
