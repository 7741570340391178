"""The callback of a run's end: a worker calls the Celery task that the start named as `on_end`.

It is called at least once for the last end of a run: a worker may die between the call and the record of
it. The task id is the same at every repeat.
"""

from __future__ import annotations

from runner.errors import UsageError
from runner.execution.nodes import sink_outputs
from runner.records.codec import JSON
from runner.records.run import Status
from runner.store.event_payloads import value
from runner.store.interface import Dispatcher, RunSnapshot, Store

LONGEST = 1000
"""Characters of the name of a task with its queue."""


def checked(on_end: str) -> str:
    """Return the name of the task to call, or "" for none.

    Raises:
        UsageError: it is no `task` and no `task@queue`.
    """
    task, separator, queue = on_end.partition("@")
    if on_end and (not task or bool(separator) != bool(queue) or len(on_end) > LONGEST or " " in on_end):
        raise UsageError(
            f'on_end is {on_end[:80]!r}; give the name of a Celery task, such as "shop.done", or with its '
            'queue "shop.done@shop". Nothing was started.'
        )
    return on_end


def call_on_end(store: Store, dispatcher: Dispatcher, run_id: str, end: int) -> str:
    """Call the task of a run that has ended: "end_reported", "left" to another process, or "stale".

    Raises:
        StoreError: the broker or the store can't be reached; workers are rung again.
    """
    snapshot = store.read(run_id)
    if snapshot is None or not snapshot.record.untold or snapshot.record.ends != end:
        return "stale"
    task_id = f"{run_id}.end" if end == 1 else f"{run_id}.end.{end}"
    sent = dispatcher.call(snapshot.record.on_end, arguments(snapshot), task_id)
    return store.end_reported(run_id, end).word if sent else "left"


def arguments(snapshot: RunSnapshot) -> dict[str, JSON]:
    """Build the task's arguments; the output only of a run that has completed, and only a small one."""
    record = snapshot.record
    output = sink_outputs(snapshot) if record.status is Status.COMPLETED else None
    return {
        "run_id": record.run_id,
        "graph": record.graph_id,
        "status": str(record.status),
        "output": value(output),
        "tags": dict(snapshot.tags),
    }
