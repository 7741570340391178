-- A dead letter of a node, bounded in number, bytes and time.
-- include: settings
local LETTERS, LETTER_BYTES, LETTER_DAYS = 10000, 1000, 30

local function write_dead_letter(run, node, visit, reason)
  local key = prefix .. 'dead'
  redis.call('XADD', key, 'MAXLEN', '~', LETTERS, '*', 'run_id', run, 'node', node:sub(1, LETTER_BYTES),
    'visit', visit, 'reason', reason:sub(1, LETTER_BYTES), 'at', now)
  -- Ids are the server's time, which is not that of a test's clock.
  local seconds = tonumber(redis.call('TIME')[1]) - LETTER_DAYS * 86400
  redis.call('XTRIM', key, 'MINID', string.format('%d', math.max(0, seconds) * 1000))
end
