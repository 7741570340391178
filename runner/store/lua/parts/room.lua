-- Room for what ends work. A server whose memory is full refuses a script at its first write, unless that
-- one can only free some; it looks no further. So a node that runs can end and a run can be cancelled,
-- while nothing new begins. No timer has an empty name.
-- include: settings
local function make_room() redis.call('ZREM', prefix .. 'timers', '') end
