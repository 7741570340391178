-- Conditions that read results: refused when one has changed, and a lock for those refused too often.
-- include: step
local LOCK = 1000

-- A word when the settle must wait; `first` to `last` are arguments (node, visit, status) that were read.
local function locked(d, own, insist, first, last)
  local until_ms, owner = d.run.lock:match('^(%d+) (.*)$')
  if owner and owner ~= own and now < tonumber(until_ms) then return 'locked' end
  for place = first, last, 3 do
    local seen = node(d, ARGV[place])
    local ended = seen.status == 'completed' or seen.status == 'failed'
    local visit, status = ended and seen.visit or 0, ended and seen.status or ''
    if visit ~= tonumber(ARGV[place + 1]) or status ~= ARGV[place + 2] then
      if insist then
        d.run.lock = ('%.0f %s'):format(now + LOCK, own)
        step(d)
      end
      return 'changed'
    end
  end
  d.run.lock = ''
end
