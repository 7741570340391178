-- The questions that a script is given.
-- include: questions

-- Arguments from `first` on: how many, then for each: id, ms until it expires (0: never), JSON,
-- what its event tells (JSON), what time does to it (see by_time).
local function read_questions(first)
  local questions, last = {}, first + 5 * tonumber(ARGV[first])
  for place = first + 1, last, 5 do
    questions[#questions + 1] = {id = ARGV[place], expires = tonumber(ARGV[place + 1]),
      json = ARGV[place + 2], payload = ARGV[place + 3], by_time = ARGV[place + 4]}
  end
  return questions, last + 1
end

-- Find those that are to be opened, and how many bytes they have.
local function asked_bytes(d, questions)
  local bytes = 0
  for _, question in ipairs(questions) do
    question.opens = standing(d, question.id) == ''
    if question.opens then bytes = bytes + #question.json + #question.by_time end
  end
  return bytes
end
