-- A place in a map that an item has left, on the fast path.
-- include: settings

-- The map's record without the item that has ended, and the item that begins in its place, if one does; nil
-- when the map must be rung, or more is to do than that.
local function without_item(key, owner, text, window)
  local total, begun, active, waiting, failed, swept = text:match('^1 (%d+) (%d+) (%d+) (%d+) (%d+) 0 (%d+)$')
  if not total then return end
  total, begun, active, waiting = tonumber(total), tonumber(begun), active - 1, tonumber(waiting)
  local item
  if begun == total then
    if active + waiting == 0 then return end
  elseif window == 0 or active + 1 < window or begun + 1 == total then
    return
  elseif active < window then
    item = owner .. '[' .. begun .. ']'
    if redis.call('HEXISTS', key, 'n:' .. item) == 1 then return end
    begun, active = begun + 1, active + 1
  end
  return table.concat({1, total, begun, active, waiting, failed, 0, swept}, ' '), item
end
