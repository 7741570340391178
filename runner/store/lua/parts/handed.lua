-- Nodes whose work another system does.
-- include: shape

local function dispatch(d, name, record)
  local node_shape = shape(d, 'n:' .. name)
  d.bells[#d.bells + 1] = {d.id, name, record.visit, record.attempt, node_shape.queue, node_shape.priority, d.run.graph}
end

-- Whether a node waits for another system, and for nothing else.
local function is_out(record)
  return record.status == 'waiting' and record.busy and record.handed ~= '' and not record.items and record.child == ''
end

-- Clear the external task of a node: its next execution starts over.
local function fresh(fields)
  fields.child, fields.handed, fields.sent, fields.late = '', '', false, false
  return fields
end
