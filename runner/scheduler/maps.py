"""The items of a map: they start while its concurrency allows, and the last end makes it ready."""

from __future__ import annotations

from dataclasses import replace

from runner.definition.model import item_id, map_of
from runner.records.run import MapRecord, Status
from runner.scheduler.changes import (
    IDLE,
    Changes,
    SetTimer,
    TimerKind,
    cancel_idle,
    dispatch,
    unassigned,
)

MAP_LIMIT = 500
"""The most items started or cancelled in one transition; a timer continues with the rest."""

AFTER_ITEM = 2
"""The most items started after one ends or waits: cheap, and soon more are ready than slots."""


def advance_map(changes: Changes, name: str) -> None:
    """Start a map's next items, or cancel a stopped map's; make it ready when all have ended."""
    record = changes.node(name)
    if changes.run.stopping or not record.items:
        return
    has_more = (
        _drop_items(changes, name) if changes.map(name).stopped else _begin_items(changes, name)
    )
    items = changes.map(name)
    if items.has_ended:
        dispatch(changes, name, record)
        return
    if has_more:
        changes.add(SetTimer(TimerKind.MAP, name, changes.now))
    # Between two transitions a map that isn't done may have no active item, so it counts as active
    # itself.
    changes.put(name, replace(record, busy=items.stopped or items.next < items.total))


def _begin_items(changes: Changes, name: str) -> bool:
    """Make items ready while concurrency allows; True if one transition can't start them all."""
    shape = changes.shape(name).map
    limit = AFTER_ITEM if any(map_of(node) == name for node in changes.nodes) else MAP_LIMIT
    before = changes.map(name).active
    for _ in range(MAP_LIMIT):
        items = changes.map(name)
        at_window = shape and 0 < shape.window <= items.active
        is_full = at_window or items.active - before == limit
        if items.next >= items.total or is_full:
            return False
        changes.maps[name] = replace(items, next=items.next + 1)
        begin_item(changes, item_id(name, items.next), items.visit)
    return True


def begin_item(changes: Changes, item: str, visit: int) -> None:
    """Make an item ready, unless it has already completed in this visit of the map (a retry)."""
    record = changes.node(item)
    if record.visit != visit:
        dispatch(
            changes,
            item,
            replace(unassigned(record), visit=visit, attempt=1, crashes=0, releases=0),
        )
    elif record.status in {Status.FAILED, Status.CANCELLED}:
        again = replace(
            unassigned(record),
            attempt=record.attempt + 1,
            crashes=0,
            releases=0,
            uncounted=record.attempt,
        )
        dispatch(changes, item, again)


def _drop_items(changes: Changes, name: str) -> bool:
    """Cancel a stopped map's idle items; True if more are left than one transition cancels."""
    for _ in range(MAP_LIMIT):
        items = changes.map(name)
        if items.swept >= items.next:
            return False
        changes.maps[name] = replace(items, swept=items.swept + 1)
        item = item_id(name, items.swept)
        if changes.node(item).visit == items.visit and changes.node(item).status in IDLE:
            cancel_idle(changes, item)
    return True


def count_failure(changes: Changes, owner: str, status: Status) -> None:
    """Count a failed item, which stops its map unless the map is declared to continue."""
    items = changes.map(owner)
    shape = changes.shape(owner).map
    if status is Status.FAILED and shape is not None:
        stops_map = items.stopped or shape.stops
        changes.maps[owner] = replace(items, failed=items.failed + 1, stopped=stops_map)


def rewind(changes: Changes, node: str) -> None:
    """Prepare the retry of a map that an item stopped: items that did not complete start again."""
    items = changes.map(node)
    if items.stopped:
        changes.maps[node] = MapRecord(items.visit, items.total)
