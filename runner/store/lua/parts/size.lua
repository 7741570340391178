-- The size of a run with all runs inside it: bytes of what was given to it, of what its nodes and people leave
-- in it and of what nodes keep. It is counted at the outermost run, in the field `size`.
-- include: settings

-- The refusal of so many bytes more where they are more than `most` allows; nil where they are not. A run
-- that stops takes all that its nodes still leave.
local function full(root, stops, bytes)
  if stops or bytes <= 0 then return end
  local size = tonumber(redis.call('HGET', prefix .. 'r:' .. root, 'size') or 0)
  if size + bytes > most then return {'full', size, bytes} end
end

local function grow(root, bytes)
  local key = prefix .. 'r:' .. root
  if bytes ~= 0 and redis.call('EXISTS', key) == 1 then redis.call('HINCRBY', key, 'size', bytes) end
end

-- How many bytes a large value counts: as many as it had before it was compressed.
local function large_bytes(data) return tonumber(data:match('^%d+')) end

-- How many bytes the document of a node has; k:<node> is "1" for one that has none, but a task of its own.
local function document_bytes(key, name)
  local bytes = redis.call('HSTRLEN', key, 'k:' .. name)
  return bytes > 1 and bytes or 0
end

-- How many bytes a question has as it is stored, without the numbers before it.
local function json_bytes(key, id)
  local stored = redis.call('HGET', key, 'i:' .. short_id(id))
  return stored and #stored - stored:find('{', 1, true) + 1 or 0
end
