-- Read hashes and lists as of one moment. While its memory is full, Redis refuses even transactions that only read;
-- it runs scripts that only read.
--
-- Keys touched, all read: r:<run>, r:<run>:m; session:m:<session>, session:s:<session>.
-- Arguments: from 6 the keys.
-- Words: "read", then the contents of each key: the entries of a list, the names and values of a hash; {} if it is absent.
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
