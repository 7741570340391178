-- Who may write for a visit, and the first reply to a repeated request.
-- include: draft
local function holds(record, visit, fence)
  return record.status == 'running' and record.visit == visit and record.fence == fence
end

local function refusal(record, visit, fence, words)
  return record.visit == visit and record.fence == fence and words[record.status] or 'stale'
end
