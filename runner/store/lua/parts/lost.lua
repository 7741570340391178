-- A worker is gone: its lease ran out.
-- include: dead
-- include: finish
-- include: result
local CRASHES = 5

-- Write the error of a node that killed every worker that took it, and a dead letter.
-- Arguments of the script: 7 the error's entry (JSON), 8 the reason in words.
local function dead_letter(d, name, visit)
  leave_result(d, name .. '.' .. visit, 'failed', '', ARGV[7])
  write_dead_letter(d.id, name, visit, ARGV[8])
end

-- Another worker goes on, until the node has used up its crash budget.
local function lost(d, name, record)
  announce(d, 'node.lost', name, record.visit, record.attempt)
  if stops(d, name) then return cancel_node(d, name) end
  if record.crashes + 1 < CRASHES then
    return ring(d, name, {attempt = record.attempt + 1, fence = record.fence + 1,
      crashes = record.crashes + 1, uncounted = record.uncounted + 1})
  end
  dead_letter(d, name, record.visit)
  withdraw(d, name, record.visit, record.questions)
  finish(d, name, {questions = {}, unseen = 0}, 'failed', '', cjson.encode({error = 'NodeFailed: ' .. ARGV[8]}))
end
