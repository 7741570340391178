"""How a Celery task that works for a node tells us its end: as the callbacks of its message.

`link` and `link_error` are published by whichever worker ran the task, for our own queue. Where our tasks
are installed there, too, an error comes whole; elsewhere Celery only says which task failed.
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Any

from celery import Celery, current_app, shared_task
from celery.result import AsyncResult

from runner import codec, failures
from runner.errors import NodeFailed, PayloadTooLarge, UnstorableError
from runner.graph import DEFAULT_QUEUE
from tasks.engines import engine_of
from tasks.responses import OPTIONS

log = logging.getLogger(__name__)

UNKNOWN = (
    "task {0} failed; Celery tells other workers no more than that. Its own worker's log says why. Call "
    "tasks.install(app) on its app to get the exception here."
)


def callback(app: Celery, name: str, where: dict[str, Any]) -> Any:
    """Make what travels with a task's message; nothing is declared, for our workers have the queue."""
    return app.signature(name, kwargs=where, queue=DEFAULT_QUEUE, declare=[])


@shared_task(bind=True, name="tasks.report", **OPTIONS)
def report(self: Any, result: object = None, *, error: Any = None, **where: Any) -> None:
    """Take the result of a task, or the record of its error, and let its node go on."""
    reference = where["reference"]
    try:
        found = {"error": error} if error else {"result": codec.pack(result, f"the result of {reference}")}
        _report(self.app, where, found)
    except (PayloadTooLarge, UnstorableError) as refused:
        _report(self.app, where, {"error": asdict(failures.record(refused))})


def _report(app: Celery, where: dict[str, Any], found: dict[str, Any]) -> None:
    word = engine_of(app).report(where["run_id"], where["node"], where["visit"], where["reference"], found)
    if word != "reported":
        log.info("report.refused: nobody waits for task %s any more (%s).", where["reference"], word)


@shared_task(name="tasks.report_error", ignore_result=True)
def report_error(
    request: Any, exc: BaseException | None = None, _traceback: object = None, **where: Any
) -> None:
    """Send on how a task failed: called by the worker of the task, or as a task with its id alone."""
    if exc is None:
        exc = _known(str(request)) or NodeFailed(UNKNOWN.format(where["reference"]))
    stored = asdict(failures.record(exc))
    callback(current_app, "tasks.report", {**where, "error": stored}).apply_async()


def _known(task_id: str) -> BaseException | None:
    """Ask the result backend, if this app shares one with the worker of the task."""
    try:
        found = AsyncResult(task_id, app=current_app).result
    except Exception:  # noqa: BLE001 - without a backend, or with one that is away, it isn't known
        return None
    return found if isinstance(found, BaseException) else None
