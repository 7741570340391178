-- How a run goes on in another shape. Arguments: run, its number of events, fingerprint, graph, its parent's
-- node, path, executions begun, what its event tells (JSON), records (parts/reopen.lua); then, each after how
-- many there are: visits undone (node.visit, entry), nodes that forget, nodes renamed (old, new, visit,
-- document, decided questions), visits (old, new, entry), questions moved (old id, new id, node, visit, JSON,
-- what its event tells), questions withdrawn (node, visit, id), child runs that stop, and for questions to
-- ask (node, visit); at last those questions (parts/question_arguments.lua).
-- include: reopen
-- include: revive
-- include: open_questions
-- include: renamed
-- include: moved
local LISTS = {{'undone', 2}, {'forgets', 1}, {'renamed', 5}, {'visits', 3}, {'moved', 6}, {'withdrawn', 3},
  {'stops', 1}, {'places', 2}}

local function read_move(place)
  local move = {run = ARGV[place], events = tonumber(ARGV[place + 1]), fp = ARGV[place + 2],
    graph = ARGV[place + 3], node = ARGV[place + 4], path = ARGV[place + 5],
    started = tonumber(ARGV[place + 6]), event_data = ARGV[place + 7]}
  move.records, place = read_records(place + 8)
  for _, list in ipairs(LISTS) do move[list[1]], place = read_list(place, list[2]) end
  move.questions, place = read_questions(place)
  return move, place
end

-- Use another shape, under another graph where the run is inside one.
local function reshape(d, move)
  if move.fp ~= d.run.fp then
    release(d)
    d.shape_key, d.shapes = prefix .. 'g:' .. move.fp, {}
    redis.call('HINCRBY', d.shape_key, 'runs', 1)
    redis.call('PERSIST', d.shape_key)
  end
  redis.call('ZREM', prefix .. 'runs:' .. d.run.status .. ':' .. d.run.graph, d.id)
  list_run(d.id, d.run.status, move.graph, redis.call('HGET', d.key, 'created'))
  d.run.fp, d.run.graph = move.fp, move.graph
  local of = table.concat({move.fp, d.run.parent ~= '' and d.run.parent or '-', move.graph}, ' ')
  redis.call('HSET', d.key, 'of', of)
  if move.node ~= '' then redis.call('HSET', d.key, 'parent_node', move.node, 'path', move.path) end
  local timeout = shape(d, 'meta').timeout
  timer(d, 'deadline', '', timeout > 0 and now + timeout)
end

local function tell_moves(d, move)
  announce(d, 'run.migrated', '', 0, move.fp, move.event_data)
  for _, question in ipairs(move.moved) do
    announce(d, 'interrupt.moved', question[3], tonumber(question[4]), question[2], question[6])
    move_question(d, question, d.run.events + #d.events)
  end
  for _, question in ipairs(move.withdrawn) do withdraw(d, question[1], tonumber(question[2]), {question[3]}) end
  for place, question in ipairs(move.questions) do
    open_question(d, move.places[place][1], tonumber(move.places[place][2]), question)
  end
  for _, child in ipairs(move.stops) do d.follow[#d.follow + 1] = {run = child[1]} end
end
