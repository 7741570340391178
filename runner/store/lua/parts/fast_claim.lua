-- The fast path of a claim: a ready node without limits in the first round of its loops, in a run that does not
-- stop. It costs a third of the general way, which follows; anything unusual falls through to it before
-- anything is written. A property test holds the two equal to the reference.
-- include: settings
-- include: fast_inputs
-- include: echo
-- include: fence
local function fast_claim()
  local run, name, visit, attempt = ARGV[6], ARGV[7], ARGV[8], ARGV[9]
  local key = prefix .. 'r:' .. run
  local owner, index
  if name:byte(-1) == 93 then owner, index = name:match('^(.*)%[(%d+)%]$') end
  local own = redis.call('HMGET', key, 'n:' .. name, 'run', 'of', 'task', 'state', 'q:' .. name, 'k:' .. name,
    'm:' .. (owner or name))
  local fence = (own[1] or ''):match('^ready ' .. visit .. ' ' .. attempt .. ' (%d+) 0 %- %S+ $')
  if not fence or own[6] or own[7] then return end
  if own[8] and not (owner and own[8]:match('^%d+ %d+ %d+ %d+ %d+ %d+ 0 ')) then return end
  local counters, event = own[2]:match('^(.* )(%d+) %-$')
  if not event then return end
  local fp, parent, graph = own[3]:match('^(%S+) (%S+) (.*)$')
  local shape_name = owner and owner .. '[]' or name
  local shape_fields = redis.call('HMGET', prefix .. 'g:' .. fp, 'n:' .. shape_name, 'i:' .. name)
  local inputs = not shape_fields[1]:find('"limits"', 1, true) and fast_inputs(key, shape_fields[2])
  if not inputs then return end
  if owner then own[4] = redis.call('HGET', key .. ':f', owner .. '.' .. visit .. '.' .. index) end
  event = event + 1
  local record = 'running ' .. visit .. ' ' .. attempt .. ' ' .. next_fence(fence, ARGV[10]) .. ' 0 - ' .. ARGV[10] .. ' '
  redis.call('HSET', key, 'n:' .. name, record, 'run', counters .. event .. ' -')
  local started = {kind = 'node.started', letter = 's', visit = visit, node = name, detail = attempt}
  write_event(key, event, started, name)
  if parent ~= '-' then echo(root_of(key), started) end
  redis.call('ZADD', prefix .. 'timers', now + lease, 'node|' .. run .. '|' .. name)
  return {'claimed', graph, fp, shape_fields[1], record, own[4], own[5], inputs, {}, false, {}, false, false}
end

local fast_reply = fast_claim()
if fast_reply then return fast_reply end
