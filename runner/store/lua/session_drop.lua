-- Delete the part of a session that was moved to the session's home partition.
--
-- Keys touched: moving:m:<session>, moving:s:<session>; read: moving:n:<session>.
-- Arguments: 6 session, 7 number of the part.
-- Words: "dropped", also if another process has dropped it.
-- include: settings
if redis.call('GET', prefix .. 'moving:n:' .. ARGV[6]) == ARGV[7] then
  redis.call('DEL', prefix .. 'moving:m:' .. ARGV[6], prefix .. 'moving:s:' .. ARGV[6])
end
return {'dropped'}
