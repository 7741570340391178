-- Ask the questions of a running node: each new one is opened; one that was withdrawn stays so.
-- include: question_arguments

local function open_question(d, name, visit, question)
  announce(d, 'interrupt.asked', name, visit, question.id, question.payload)
  d.events[#d.events].question = question
  if question.expires > 0 then timer(d, 'expire', question.id, now + question.expires) end
  local remind = question.by_time:match('^%a+ (%d+)')
  if remind then timer(d, 'remind', question.id, now + tonumber(remind)) end
end

-- False when the run stops: then they are withdrawn in the same step. After asked_bytes.
local function publish(d, name, questions)
  local record, new = node(d, name), {}
  for _, question in ipairs(questions) do
    if question.opens then
      new[#new + 1] = question.id
      open_question(d, name, record.visit, question)
    end
  end
  if stops(d, name) then
    withdraw(d, name, record.visit, new)
    return false
  end
  local ids = record.questions
  for _, id in ipairs(new) do ids = append(ids, id) end
  change(d, name, {questions = ids})
  return true
end
