-- Note that a reader waits for the next entry of a stream, which only readers create; return the last entry it knows.
local function wait_on(stream, ms)
  local entry = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
  entry = entry and entry[1] or redis.call('XADD', stream, '*', 'n', 0)
  redis.call('PEXPIRE', stream, ms + 10000)
  return entry
end
