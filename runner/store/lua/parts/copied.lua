-- What a run takes over from the one that it is a fork of: all give how many bytes it is.
-- include: size

-- A large value lies with the root of its run (see shelve.lua): the fork gets one of its own.
local function own(key, value)
  local head, root, digest = value:match('^(%d*%s?)@(%S+) (%x+)$')
  if not root then return value, 0 end
  local data = redis.call('HGET', prefix .. 'r:' .. root .. ':b', digest)
  local new = data and redis.call('HSET', key .. ':b', digest, data) or 0
  return head .. '@' .. key:sub(#prefix + 3) .. ' ' .. digest, (data and new * large_bytes(data) or 0)
end

-- Copy results; each gets another place in the order.
local function copy_results(source, key, results)
  local bytes = 0
  for _, item in ipairs(results) do
    bytes = bytes + VISIT_BYTES
    for place, value in ipairs(redis.call('HMGET', source, 'x:' .. item[1], 'o:' .. item[1])) do
      if value then
        local text, large = own(key, value)
        local entry = place == 1 and text:match('^%S+ (.*)$')
        redis.call('HSET', key, (entry and 'x:' or 'o:') .. item[1], entry and item[2] .. ' ' .. entry or text)
        bytes = bytes + large + #(entry or text)
      end
    end
  end
  return bytes
end

-- Copy what nodes keep: document and messages.
local function copy_kept(source, key, nodes)
  local bytes = 0
  local function copy(list, field)
    local value = redis.call('HGET', source .. list, field)
    redis.call('HSET', key .. list, field, value)
    bytes = bytes + #value
  end
  for _, item in ipairs(nodes) do
    local name = item[1]
    if document_bytes(source, name) > 0 then
      copy('', 'k:' .. name)
      local count = tonumber(redis.call('HGET', source .. ':m', '#' .. name) or 0)
      for place = 1, count do
        copy(':m', place .. '.' .. name)
        bytes = bytes + MESSAGE_BYTES
      end
      if count > 0 then redis.call('HSET', key .. ':m', '#' .. name, count) end
    end
  end
  return bytes
end
