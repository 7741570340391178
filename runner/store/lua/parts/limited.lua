-- The word that refuses a claim because of its node's limits: it waits for a place or for its time.
-- include: limits
local function limited(d, name, record, nonce)
  local limits = shape(d, 'n:' .. name).limits
  if not limits then return end
  local wait = record.granted and 0 or reserve(d, limits)
  if wait > 0 then
    change(d, name, {status = 'retrying', granted = true, nonce = nonce, rings = 0})
    timer(d, 'node', name, now + wait)
    announce(d, 'node.limited', name, record.visit, ('%.0f'):format(wait))
    return ('limited %.0f'):format(wait)
  end
  local places = places_of(d, name)
  local since = record.since > 0 and record.since or math.max(1, now)
  local free = take(d, name, places, since)
  if not free and record.since == 0 then announce(d, 'node.limited', name, record.visit) end
  change(d, name, {since = #places > 0 and since or 0, granted = true})
  return not free and 'limited' or nil
end
