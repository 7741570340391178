-- Listings: of runs by status and graph, and by tag; of open questions by graph, person, and family of runs.
-- include: settings
local function listings_of(status, graph, tags)
  local listings = {status .. ':' .. graph}
  if tags and tags ~= '' then
    for name, value in pairs(cjson.decode(tags)) do listings[#listings + 1] = 't:' .. name .. '=' .. value end
  end
  return listings
end

local function list_run(run, status, graph, created, tags)
  for _, name in ipairs(listings_of(status, graph, tags)) do redis.call('ZADD', prefix .. 'runs:' .. name, created, run) end
end

local function unlist_run(run, status, graph, tags)
  for _, name in ipairs(listings_of(status, graph, tags)) do redis.call('ZREM', prefix .. 'runs:' .. name, run) end
end

-- The listings of an open question; `json` begins with its assignees. What nodes of an outermost run ask, but
-- for items of maps, is not listed by family: asked.lua finds it in the run.
local function question_listings(of, root, id, json)
  local parent, graph = of:match('^%S+ (%S+) ([^/]*)')
  local names = {'g:' .. graph}
  if parent ~= '-' or id:find('%]%.%d+%.[^.]*$') then names[2] = 'r:' .. (root or id:match('^[^.]+')) end
  if json:sub(1, 15) ~= '{"assignees":[]' then
    for _, person in ipairs(cjson.decode(json).assignees) do names[#names + 1] = 'a:' .. person end
  end
  return names
end

local function list_open(key, id, json)
  local of, root = unpack(redis.call('HMGET', key, 'of', 'root'))
  for _, name in ipairs(question_listings(of, root, id, json)) do redis.call('ZADD', prefix .. 'open:' .. name, now, id) end
end

local function list_closed(key, id)
  local of, root, asked = unpack(redis.call('HMGET', key, 'of', 'root', 'i:' .. short_id(id)))
  local names = question_listings(of, root, id, asked:match('{.*$'))
  for _, name in ipairs(names) do redis.call('ZREM', prefix .. 'open:' .. name, id) end
end
