"""The items of a map: they begin while there is room, and its end rings the map."""

from __future__ import annotations

from dataclasses import replace

from runner.actions import SetTimer, TimerKind
from runner.draft import Draft
from runner.maps import item_id
from runner.run import MapRecord, Status
from runner.transitions.steps import IDLE, drop, fresh, ring

MAP_LIMIT = 500
"""Items of a map begun or cancelled in one step; the rest follow by a timer."""


def move_map(draft: Draft, name: str) -> None:
    """Begin the items of a map that have room, or cancel those of a stopped one; ring it at the end."""
    record = draft.node(name)
    if draft.run.stopping or not record.items:
        return
    more = _drop_items(draft, name) if draft.map(name).stopped else _begin_items(draft, name)
    found = draft.map(name)
    if found.has_ended:
        ring(draft, name, record)
        return
    if more:
        draft.add(SetTimer(TimerKind.MAP, name, draft.now))
    # Between two steps, no item may be at work although the map is not done: so it counts itself.
    draft.put(name, replace(record, busy=found.stopped or found.next < found.total))


def _begin_items(draft: Draft, name: str) -> bool:
    """Make items ready while there is room; True when one step is too short for all."""
    window = draft.shape(name).map
    for _ in range(MAP_LIMIT):
        found = draft.map(name)
        if found.next >= found.total or (window and 0 < window.window <= found.active):
            return False
        draft.maps[name] = replace(found, next=found.next + 1)
        _begin_item(draft, item_id(name, found.next), found.visit)
    return True


def _begin_item(draft: Draft, item: str, visit: int) -> None:
    """Make an item ready, unless it has completed in this visit: then its map runs again without it."""
    record = draft.node(item)
    if record.visit != visit:
        ring(draft, item, replace(fresh(record), visit=visit, attempt=1, crashes=0))
    elif record.status in {Status.FAILED, Status.CANCELLED}:
        again = replace(fresh(record), attempt=record.attempt + 1, crashes=0, uncounted=record.attempt)
        ring(draft, item, again)


def _drop_items(draft: Draft, name: str) -> bool:
    """Cancel the idle items of a stopped map; True when one step is too short for all."""
    for _ in range(MAP_LIMIT):
        found = draft.map(name)
        if found.swept >= found.next:
            return False
        draft.maps[name] = replace(found, swept=found.swept + 1)
        item = item_id(name, found.swept)
        if draft.node(item).visit == found.visit and draft.node(item).status in IDLE:
            drop(draft, item)
    return True


def count_failure(draft: Draft, owner: str, status: Status) -> None:
    """Count a failed item; it stops its map unless that goes on without it."""
    found, shape = draft.map(owner), draft.shape(owner).map
    if status is Status.FAILED and shape is not None:
        stopped = found.stopped or shape.stops
        draft.maps[owner] = replace(found, failed=found.failed + 1, stopped=stopped)


def rewind(draft: Draft, node: str) -> None:
    """A map that failed of an item and is tried again begins what has not completed anew."""
    found = draft.map(node)
    if found.stopped:
        draft.maps[node] = MapRecord(found.visit, found.total)
