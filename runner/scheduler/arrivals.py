"""What makes nodes ready: arrivals along edges, and the rounds of loops.

`store/lua/apply.lua` counts the arrivals of planned transitions as `arrive` does.
"""

from __future__ import annotations

from dataclasses import replace

from runner.definition.model import ROOT, EdgeKind, Join
from runner.records.run import Arrivals, EventKind, LoopRecord, Status
from runner.scheduler.changes import AddEvent, Arrival, Changes
from runner.scheduler.shared import dispatch, stop


def spread(changes: Changes, first: str) -> None:
    """Send a settled node's arrivals; nodes that they skip settle, too, and send theirs."""
    todo = [first]
    while todo:
        node = todo.pop(0)
        record = changes.node(node)
        for position, edge in enumerate(changes.topology.outgoing[node]):
            live = record.edges[position : position + 1] == "1"
            if edge.kind is EdgeKind.FORWARD:
                arrive(changes, edge.target, edge.scope, live=live, settled=todo)
            elif live and edge.kind is EdgeKind.BACK:
                loop = changes.loop(edge.loop)
                changes.loops[edge.loop] = replace(loop, asked=(*loop.asked, (node, record.visit)))
            elif live and edge.kind is EdgeKind.EXIT:
                _leave(changes, node, position, todo)
        for loop_id in changes.topology.nodes[node].loops:
            loop = changes.loop(loop_id)
            changes.loops[loop_id] = replace(loop, settled=loop.settled + 1)
            if loop.settled + 1 == changes.topology.loops[loop_id].size:
                _turn(changes, loop_id, todo)


def arrive(changes: Changes, node: str, scope: int, *, live: bool, settled: list[str]) -> None:
    """Count one arrival, which may make the node ready or skip it; a skipped node is added to `settled`."""
    stamp = changes.round(scope)
    if changes.uncounted is not None:
        own = changes.round(changes.topology.nodes[node].scope)
        changes.uncounted.append(Arrival(node, scope, stamp, own, live))
        return
    record, shape = changes.node(node), changes.topology.nodes[node]
    # Of a single arrival no count is kept: nothing comes that it would be added to.
    arrived, alive = 1, int(live)
    if shape.needs != 1:
        old = changes.arrived.get((scope, node)) or changes.view.arrivals(scope, node)
        if old.stamp != stamp:
            old = Arrivals(stamp)
        changes.arrived[scope, node] = Arrivals(stamp, old.arrived + 1, old.live + live)
        arrived, alive = _total(changes, node)
    if record.status is not Status.PENDING:
        return
    if arrived >= shape.needs and not alive:
        changes.put(node, replace(record, status=Status.SKIPPED))
        changes.add(AddEvent(EventKind.NODE_SKIPPED, node, record.visit))
        settled.append(node)
    elif (live and shape.join is Join.ANY) or (arrived >= shape.needs and alive):
        begin_visit(changes, node, visit=record.next_visit, attempt=1)


def _total(changes: Changes, node: str) -> tuple[int, int]:
    """Sum a node's arrivals over its scopes, without those of older rounds."""
    arrived = alive = 0
    for scope in (*changes.topology.nodes[node].loops, ROOT):
        counts = changes.arrived.get((scope, node)) or changes.view.arrivals(scope, node)
        if counts.stamp == changes.round(scope):
            arrived, alive = arrived + counts.arrived, alive + counts.live
    return arrived, alive


def _leave(changes: Changes, node: str, position: int, settled: list[str]) -> None:
    """Follow an edge out of a loop; it arrives only the first time that it is taken."""
    edge = changes.topology.outgoing[node][position]
    loop = changes.loop(edge.loop)
    if any((source, place) == (node, position) for source, place, _ in loop.taken):
        return
    taken = (*loop.taken, (node, position, changes.node(node).visit))
    changes.loops[edge.loop] = replace(loop, taken=taken)
    arrive(changes, edge.target, edge.scope, live=True, settled=settled)


def _turn(changes: Changes, loop_id: int, settled: list[str]) -> None:
    """Start the next round of a loop all of whose nodes have settled, or end the loop."""
    shape, loop = changes.topology.loops[loop_id], changes.loop(loop_id)
    if loop.asked and not any(changes.loop(outer).asked for outer in shape.outer):
        _again(changes, loop_id)
        return
    changes.loops[loop_id] = replace(loop, asked=())
    taken = {(source, position) for source, position, _ in loop.taken}
    for source, position in shape.exits:
        if (source, position) not in taken:
            edge = changes.topology.outgoing[source][position]
            arrive(changes, edge.target, edge.scope, live=False, settled=settled)


def _again(changes: Changes, loop_id: int) -> None:
    """Start a loop's next round: loops inside it are reset, loops around it wait for it."""
    shape, loop = changes.topology.loops[loop_id], changes.loop(loop_id)
    changes.loops[loop_id] = LoopRecord(loop.round + 1, taken=loop.taken)
    for inner in shape.inner:
        changes.loops[inner] = LoopRecord(changes.loop(inner).round + 1)
    for outer in shape.outer:
        around = changes.loop(outer)
        changes.loops[outer] = replace(around, settled=around.settled - shape.size)
    record = changes.node(shape.header)
    begin_visit(changes, shape.header, visit=record.next_visit, attempt=1, via=loop.asked)


def begin_visit(
    changes: Changes, node: str, *, visit: int, attempt: int, via: tuple[tuple[str, int], ...] = ()
) -> None:
    """Make a node ready for a new visit, unless the run stops or has reached its maximum of executions."""
    if changes.run.stopping:
        return
    limit = changes.topology.limit
    if limit and changes.run.started >= limit:
        stop(changes, Status.FAILED, f'max_node_executions ({limit}) reached before "{node}"')
        return
    changes.run = replace(changes.run, started=changes.run.started + 1)
    record = changes.node(node)
    dispatch(
        changes,
        node,
        replace(record, status=Status.READY, visit=visit, attempt=attempt, via=via, edges=""),
    )
