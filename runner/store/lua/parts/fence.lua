-- The fence of a claim. It grows by more than one, and by what its nonce says: when a failover has lost a
-- claim, the next one starts from the same number, and the worker of the lost one must not be taken for it.
local function next_fence(fence, nonce)
  return fence + 1 + tonumber(redis.sha1hex(nonce):sub(1, 5), 16)
end
