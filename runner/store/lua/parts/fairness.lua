-- Doorbells on a queue that keys share: a window of them is rung at a time, the others wait by key. The rule is
-- `StrideQueue` of tests/simulation/stride_queue.py: see test_the_store_rings_in_the_order_of_the_rule.
-- include: settings
local STAYS = 330000  -- ms after which the window stops counting an unclaimed doorbell: a timer has rung again
local MOST_PASSED = 1000  -- doorbells of gone runs, and keys without any, that one script passes; the next script continues
local FAIR = prefix .. 'fair:'

local function task_of(bell) return table.concat({bell[1], bell[2], bell[3], bell[4]}, '.') end

-- Return whether the visit of a doorbell still waits for a worker.
local function is_ready(run, node, visit, attempt)
  local record = redis.call('HGET', prefix .. 'r:' .. run, 'n:' .. node)
  return record and record:match('@node(status=ready visit+attempt)') == visit .. ' ' .. attempt
end

-- Take the doorbells to ring now; return whether there are more to pass.
local function refill(queue, priority, rung)
  local lane = queue .. '|' .. priority
  local window, passes, state = FAIR .. 'w:' .. lane, FAIR .. 'p:' .. lane, FAIR .. 's:' .. lane
  redis.call('ZREMRANGEBYSCORE', window, '-inf', now)
  local room = tonumber(redis.call('HGET', FAIR .. 'windows', queue) or 16) - redis.call('ZCARD', window)
  -- A claim whose arrival failed has left its doorbell, which eventually is the oldest.
  while room <= 0 do
    local oldest = redis.call('ZRANGE', window, 0, 0)[1]
    if is_ready(oldest:match('^([^.]*)%.(.*)%.(%d+)%.(%d+)$')) then return end
    redis.call('ZREM', window, oldest)
    room = room + 1
  end
  local passed = 0
  while room > 0 do
    local key, pass = unpack(redis.call('ZRANGE', passes, 0, 0, 'WITHSCORES'))
    if not key then return end
    if passed == MOST_PASSED then return true end
    local node = redis.call('ZPOPMIN', FAIR .. 'n:' .. lane .. ':' .. key)[1]
    local bell = node and cjson.decode(node)
    if not node then
      redis.call('ZREM', passes, key)
      redis.call('HDEL', state, '=' .. key)
      passed = passed + 1
    elseif is_ready(unpack(bell, 1, 4)) then
      bell.has_waited = true
      redis.call('HSET', state, 'time', pass)
      redis.call('ZINCRBY', passes, redis.call('HGET', state, '=' .. key), key)
      redis.call('ZADD', window, now + STAYS, task_of(bell))
      rung[#rung + 1] = bell
      room = room - 1
    else
      passed = passed + 1
    end
  end
end

-- Keep the doorbells whose graph has a share after its name; return the doorbells to ring now.
local function in_turn(bells)
  local rung, lanes = {}, {}
  for _, bell in ipairs(bells) do
    local graph, stride, key = bell[7]:match('^([^\1]*)\1([^\1]*)\1(.*)$')
    bell[7] = graph or bell[7]
    local lane = bell[5] .. '|' .. bell[6]
    if not graph then
      rung[#rung + 1] = bell
    elseif redis.call('ZSCORE', FAIR .. 'w:' .. lane, task_of(bell)) then
      -- A doorbell that was already rung, and may be lost, is rung again.
      redis.call('ZADD', FAIR .. 'w:' .. lane, now + STAYS, task_of(bell))
      rung[#rung + 1] = bell
    else
      local state = FAIR .. 's:' .. lane
      local count = redis.call('HINCRBY', state, 'count', 1)
      redis.call('ZADD', FAIR .. 'n:' .. lane .. ':' .. key, 'NX', now + count % 4096 / 4096, cjson.encode(bell))
      redis.call('ZADD', FAIR .. 'p:' .. lane, 'NX', redis.call('HGET', state, 'time') or 0, key)
      redis.call('HSET', state, '=' .. key, stride)
    end
    if graph then lanes[lane] = {bell[5], bell[6]} end
  end
  for _, lane in pairs(lanes) do refill(lane[1], lane[2], rung) end
  return rung
end
