-- Read hashes and lists as they are at one moment. Redis refuses a transaction, also one that only reads, while its
-- memory is full; a script that only reads it runs.
--
-- Keys touched, all read: r:<run>, r:<run>:m; session:m:<session>, session:s:<session>.
-- Arguments: from 6 the keys.
-- Words: "read", then what each key holds: the entries of a list, the names and values of a hash; {} where there is none.
local contents = {'read'}
for number = 6, #ARGV do
  local key = ARGV[number]
  if redis.call('TYPE', key).ok == 'list' then
    contents[#contents + 1] = redis.call('LRANGE', key, 0, -1)
  else
    contents[#contents + 1] = redis.call('HGETALL', key)
  end
end
return contents
