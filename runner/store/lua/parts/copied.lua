-- What a run takes over from the one that it is a fork of.
-- include: settings

-- A large value lies with the root of its run (see shelve.lua): the fork gets one of its own.
local function own(key, value)
  local head, root, digest = value:match('^(%d*%s?)@(%S+) (%x+)$')
  if not root then return value end
  local data = redis.call('HGET', prefix .. 'r:' .. root .. ':b', digest)
  if data then redis.call('HSET', key .. ':b', digest, data) end
  return head .. '@' .. key:sub(#prefix + 3) .. ' ' .. digest
end

-- Copy results; each gets another place in the order.
local function copy_results(source, key, kept)
  for _, item in ipairs(kept) do
    local found = redis.call('HMGET', source, 'x:' .. item[1], 'o:' .. item[1])
    local entry = found[1] and own(key, found[1])
    if entry then redis.call('HSET', key, 'x:' .. item[1], (entry:gsub('^%S+', item[2], 1))) end
    if found[2] then redis.call('HSET', key, 'o:' .. item[1], own(key, found[2])) end
  end
end

-- Copy what nodes keep: document and messages.
local function copy_kept(source, key, nodes)
  for _, item in ipairs(nodes) do
    local name = item[1]
    local document = redis.call('HGET', source .. ':s', name)
    if document then
      redis.call('HSET', key, 'k:' .. name, 1)
      redis.call('HSET', key .. ':s', name, document)
    end
    local count = tonumber(redis.call('HGET', source .. ':m', '#' .. name) or 0)
    for place = 1, document and count or 0 do
      local field = place .. '.' .. name
      redis.call('HSET', key .. ':m', field, redis.call('HGET', source .. ':m', field))
    end
    if document then redis.call('HSET', key .. ':m', '#' .. name, count) end
  end
end
