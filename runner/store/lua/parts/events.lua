-- Events of a run, in its own stream, and notices for services, in the partition's.
-- include: questions
-- include: echo
local NOTICES = {['interrupt.asked'] = true, ['interrupt.answered'] = true,
  ['interrupt.expired'] = true, ['interrupt.reminded'] = true, ['interrupt.withdrawn'] = true,
  ['run.ended'] = true, ['run.migrated'] = true}

local LETTERS_OF = {['run.started'] = 'b', ['run.status'] = 'r', ['run.ended'] = 'e', ['node.started'] = 's',
  ['node.completed'] = 'c', ['node.skipped'] = 'k', ['node.waiting'] = 'w', ['node.resumed'] = 'g',
  ['interrupt.asked'] = 'q', ['interrupt.answered'] = 'a'}

local function write_notice(d, event)
  redis.call('XADD', prefix .. 'notices', 'MAXLEN', '~', 100000, '*', 'id', d.id .. ':' .. d.run.events,
    'kind', event.kind, 'run_id', d.id, 'node', event.node, 'visit', event.visit, 'detail', event.detail,
    'at', now, 'question', event.reminds or (event.question and event.question.json) or '',
    'withdrawal', event.kind == 'interrupt.withdrawn' and event.data or '',
    'reminded', event.reminds and event.data:match('%d+') or 0)
end

-- Events are numbered by the run, so that a reader can go on after any of them.
local function write_events(d)
  for _, event in ipairs(d.events) do
    d.run.events = d.run.events + 1
    event.letter = LETTERS_OF[event.kind]
    write_event(d.key, d.run.events, event, event.node)
    if d.run.parent ~= '' then echo(root_of(d.key), event) end
    if event.question then write_question(d, event) end
    if NOTICES[event.kind] then write_notice(d, event) end
  end
end
