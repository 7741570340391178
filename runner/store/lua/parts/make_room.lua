-- Room for requests that end work. A server whose memory is full refuses a script at its first write, unless that
-- can only free memory; it checks no later writes. So a running node can end and a run can be cancelled,
-- while nothing new begins. No timer has an empty name.
-- include: settings
local function make_room() redis.call('ZREM', prefix .. 'timers', '') end
