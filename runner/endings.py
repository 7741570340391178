"""Telling that a run has ended: the Celery task that its start named is called by whichever worker is rung.

It is called at least once for the last end of a run: a worker may be gone between the call and the note
that it was made. Its task id is the same at every repeat.
"""

from __future__ import annotations

from typing import Any

from runner.errors import UsageError
from runner.nodes import sink_outputs
from runner.ports import Dispatcher, RunSnapshot, Store
from runner.run import Status
from runner.store.told import value

JSON = Any

LONGEST = 1000
"""Characters of the name of a task with its queue."""


def checked(on_end: str) -> str:
    """Return the name of a task that is to be called, or "" for none.

    Raises:
        UsageError: it is no `task` and no `task@queue`.
    """
    task, at, queue = on_end.partition("@")
    if on_end and (not task or bool(at) != bool(queue) or len(on_end) > LONGEST or " " in on_end):
        raise UsageError(
            f'on_end is {on_end[:80]!r}; give the name of a Celery task, such as "shop.done", or with its '
            'queue "shop.done@shop". Nothing was started.'
        )
    return on_end


def tell(store: Store, dispatcher: Dispatcher, run_id: str, end: int) -> str:
    """Call the task of a run that has ended: "told", "left" to another process, or "stale".

    Raises:
        StoreError: the broker or the store can't be reached; workers are rung again.
    """
    snapshot = store.read(run_id)
    if snapshot is None or not snapshot.record.untold or snapshot.record.ends != end:
        return "stale"
    task_id = f"{run_id}.end" if end == 1 else f"{run_id}.end.{end}"
    sent = dispatcher.call(snapshot.record.on_end, arguments(snapshot), task_id)
    return store.told(run_id, end).word if sent else "left"


def arguments(snapshot: RunSnapshot) -> dict[str, JSON]:
    """Write what the task is told; the output only of a run that has completed, and only a small one."""
    record = snapshot.record
    output = sink_outputs(snapshot) if record.status is Status.COMPLETED else None
    return {
        "run_id": record.run_id,
        "graph": record.graph_id,
        "status": str(record.status),
        "output": value(output),
        "tags": dict(snapshot.tags),
    }
