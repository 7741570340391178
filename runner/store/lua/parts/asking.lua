-- Ask the questions of a running node: each new one, or one that was withdrawn, is opened.
-- include: questions

-- Arguments from `first` on: how many, then for each: id, ms until it expires (0: never), JSON,
-- further listings (JSON), what its event tells (JSON), what time does to it (see by_time).
local function read_questions(first)
  local questions, last = {}, first + 6 * tonumber(ARGV[first])
  for place = first + 1, last, 6 do
    questions[#questions + 1] = {id = ARGV[place], expires = tonumber(ARGV[place + 1]),
      json = ARGV[place + 2], listings = ARGV[place + 3], told = ARGV[place + 4], by_time = ARGV[place + 5]}
  end
  return questions, last + 1
end

local function open_question(d, name, visit, question)
  announce(d, 'interrupt.asked', name, visit, question.id, question.told)
  d.events[#d.events].question = question
  if question.expires > 0 then timer(d, 'expire', question.id, now + question.expires) end
  local remind = question.by_time:match('^%a+ (%d+)')
  if remind then timer(d, 'remind', question.id, now + tonumber(remind)) end
end

-- False when the run stops: then they are withdrawn in the same step.
local function publish(d, name, questions)
  local record, new = node(d, name), {}
  for _, question in ipairs(questions) do
    local was = standing(d, question.id)
    if was == '' or was == 'withdrawn' then
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
