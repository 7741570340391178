-- The size of a run with all runs inside it: see store/redis/sizes.py. It is counted at the outermost run, in
-- the field `size`.
-- include: settings

-- The refusal of bytes that would make a size exceed `most`, or nil if they fit. A stopping run accepts all bytes
-- of its nodes; `line` is its field `run`.
local function full(size, line, bytes)
  if bytes <= 0 or not line:find(' %-$') then return end
  if (size or 0) + bytes > most then return {'full', tonumber(size or 0), bytes} end
end

local function grow(root, bytes)
  local key = prefix .. 'r:' .. root
  if bytes ~= 0 and redis.call('EXISTS', key) == 1 then redis.call('HINCRBY', key, 'size', bytes) end
end
