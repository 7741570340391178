-- Add an agent's spending to the sum of its outermost run, or of a tag, unless that exceeds a bound: the rule
-- is `add` in records/budgets.py.
--
-- Keys touched: r:<run> and its root's; or budget:<tag>=<value>:<window>:<number>.
-- Arguments: 6 run, 7 <tag>=<value> ("": the run's own sum), 8 window in ms, 9 the spender, 10 nonce, 11 number of
--   raises and for each question, counter and amount; then number of bounds and for each counter and bound;
--   then number of amounts and for each counter and amount.
-- Words: "spent", "over", "unknown" (the run doesn't exist), then the counter that is over ("" for none).
-- include: settings
local key, mark = prefix .. 'r:' .. ARGV[6]:gsub(':', '%%'), 'b:'
if ARGV[7] == '' then
  local of, root = unpack(redis.call('HMGET', key, 'of', 'root'))
  if root then
    key = prefix .. 'r:' .. root
    of = redis.call('HGET', key, 'of')
  end
  if not of then return {'unknown', ''} end
else
  local window = tonumber(ARGV[8])
  key, mark = ('%sbudget:%s:%s:%.0f'):format(prefix, ARGV[7], ARGV[8], math.floor(now / window)), ''
end

local who = mark .. '#' .. ARGV[9]
local last = redis.call('HGET', key, who) or ''
local nonce, over = last:match('^(%S+) (.*)$')
if nonce == ARGV[10] then return {over == '' and 'spent' or 'over', over} end

local place = 11
-- Call f with each group of a number of arguments.
local function each(size, f)
  local count = tonumber(ARGV[place])
  for first = place + 1, place + count * size, size do f(unpack(ARGV, first, first + size - 1)) end
  place = place + count * size + 1
end

each(3, function(question, counter, amount)
  if redis.call('HSETNX', key, mark .. '?' .. question, 1) == 1 then
    redis.call('HINCRBY', key, mark .. '+' .. counter, amount)
  end
end)
local bounds, amounts = {}, {}
each(2, function(counter, bound) bounds[#bounds + 1] = {counter, bound} end)
each(2, function(counter, amount) amounts[counter] = tonumber(amount) end)
over = ''
for _, pair in ipairs(bounds) do
  local counter, bound = pair[1], pair[2]
  redis.call('HSET', key, mark .. '^' .. counter, bound)
  local have, raised = unpack(redis.call('HMGET', key, mark .. counter, mark .. '+' .. counter))
  local after = tonumber(have or 0) + math.max(1, amounts[counter] or 0)
  if over == '' and after > tonumber(bound) + tonumber(raised or 0) then over = counter end
end
if over == '' then
  for counter, amount in pairs(amounts) do
    redis.call('HINCRBY', key, mark .. counter, ('%.0f'):format(amount))
  end
end
redis.call('HSET', key, who, ARGV[10] .. ' ' .. over)
if mark == '' then redis.call('PEXPIRE', key, 2 * tonumber(ARGV[8])) end
return {over == '' and 'spent' or 'over', over}
