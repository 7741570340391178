-- Listings besides those of everything: of runs by graph and tag, of open questions by graph, family of
-- runs, name and person.
-- include: settings
local function listings_of(graph, tags)
  local listings = {'g:' .. graph}
  for name, value in pairs(cjson.decode(tags)) do listings[#listings + 1] = 't:' .. name .. '=' .. value end
  return listings
end

local function list_run(run, graph, tags)
  redis.call('ZADD', prefix .. 'runs', now, run)
  for _, name in ipairs(listings_of(graph, tags)) do redis.call('ZADD', prefix .. 'runs:' .. name, now, run) end
end

local function list_open(d, id, listings)
  local also = cjson.decode(listings)
  also[#also + 1] = 'g:' .. d.run.graph:match('^[^/]*')
  also[#also + 1] = 'r:' .. redis.call('HGET', d.key, 'root')
  redis.call('ZADD', prefix .. 'open', now, id)
  for _, name in ipairs(also) do redis.call('ZADD', prefix .. 'open:' .. name, now, id) end
  redis.call('HSET', prefix .. 'listed:open', id, cjson.encode(also))
end

-- Take a member out of the listings that a hash keeps for it.
local function unlist(of, id)
  local also = redis.call('HGET', prefix .. 'listed:' .. of, id)
  if not also then return end
  for _, name in ipairs(cjson.decode(also)) do redis.call('ZREM', prefix .. of .. ':' .. name, id) end
  redis.call('HDEL', prefix .. 'listed:' .. of, id)
end

local function list_closed(id)
  redis.call('ZREM', prefix .. 'open', id)
  unlist('open', id)
end
