"""An existing Celery task as a node: a worker sends it, and the node waits for it without a worker.

The task may live in any app whose workers read the same broker. It needs nothing of ours: callbacks
that travel with its message tell us how it ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from runner import codec, failures, inputs
from runner.errors import DefinitionError, NodeTimedOut, UsageError
from runner.functions import NodeContext
from runner.outcomes import Failed, Handed, Outcome, Succeeded, Visit, Work

if TYPE_CHECKING:
    from celery import Celery

log = logging.getLogger(__name__)

Arguments = Sequence[Any] | Callable[[NodeContext], Sequence[Any]]
Keywords = Mapping[str, Any] | Callable[[NodeContext], Mapping[str, Any]]

THEIR_QUEUE = "celery"
"""Where tasks are sent that only have a name: Celery's own default."""


class CeleryTask:
    """An executor that lets a Celery task do the work of its node."""

    kind = "celery"

    def __init__(
        self,
        task: Any,
        *,
        args: Arguments | None = None,
        kwargs: Keywords | None = None,
        queue: str | None = None,
    ) -> None:
        """Name the task, or give the task object.

        Args:
            task: "shop.charge", or the task itself.
            args: its positional arguments, or a function of the NodeContext that gives them. Without
                `args` and `kwargs` it is given one: the node's only input, else all by node id, else the
                run's task.
            kwargs: its keyword arguments, likewise.
            queue: where to send it; without one the task's own, or "celery" for a name.

        Raises:
            DefinitionError: it is neither a name nor a Celery task.
        """
        name = task if isinstance(task, str) else getattr(task, "name", None)
        if not (isinstance(name, str) and name) or not (
            isinstance(task, str) or hasattr(task, "apply_async")
        ):
            raise DefinitionError(f"{task!r} is no Celery task: give its name, or the task itself.")
        self.name, self._task, self._queue = name, task, queue
        self._args, self._kwargs = args, kwargs

    def execute(self, visit: Visit) -> Outcome:
        """Hand the work out, or take what was reported of it."""
        work = visit.work
        if work is not None and work.report is not None:
            return reported(work.report)
        app = app_of(visit)
        if work is not None and work.late:
            revoke(app, work.reference)
            return Failed(failures.record(_late(self.name, work)))
        args, kwargs = self._arguments(visit)
        codec.pack([args, kwargs], f"the arguments of task {self.name}")
        at = visit.address
        new = f"{at.run_id}.{at.node_id}.{at.visit}.{visit.attempt}.task"
        reference = work.reference if work is not None else new
        where = {"run_id": at.run_id, "node": at.node_id, "visit": at.visit, "reference": reference}
        return Handed(reference, lambda: self._send(app, where, args, kwargs))

    def _arguments(self, visit: Visit) -> tuple[list[Any], dict[str, Any]]:
        if self._args is None and self._kwargs is None:
            return [inputs.given(visit.task, visit.inputs)[1]], {}
        context = NodeContext(visit)
        args = self._args(context) if callable(self._args) else self._args
        kwargs = self._kwargs(context) if callable(self._kwargs) else self._kwargs
        return list(args or ()), dict(kwargs or {})

    def _send(self, app: Celery, where: dict[str, Any], args: list[Any], kwargs: dict[str, Any]) -> None:
        from tasks.doorbells import CONNECT  # noqa: PLC0415 - Celery is imported when it is needed
        from tasks.reports import callback  # noqa: PLC0415

        named = isinstance(self._task, str)
        sender = app if named else self._task.app
        queue = self._queue or (THEIR_QUEUE if named and self._is_ours(app) else None)
        options: dict[str, Any] = {
            "task_id": where["reference"],
            "link": callback(app, "tasks.report", where),
            "link_error": callback(app, "tasks.report_error", where),
            "retry": False,
            **({"queue": queue} if queue else {}),
        }
        with sender.producer_or_acquire() as producer:
            producer.connection.ensure_connection(**CONNECT)
            if named:
                app.send_task(self.name, args, kwargs, producer=producer, **options)
            else:
                self._task.apply_async(args, kwargs, producer=producer, **options)

    def _is_ours(self, app: Celery) -> bool:
        from runner.graph import DEFAULT_QUEUE  # noqa: PLC0415

        return self.name not in app.tasks and app.conf.task_default_queue == DEFAULT_QUEUE


def reported(report: Mapping[str, Any]) -> Outcome:
    """Read what was reported: a result, or the error that the task ended with."""
    if "error" in report:
        return Failed(failures.load(report["error"]))
    return Succeeded(report["result"], codec.plain(codec.unpack(report["result"])))


def app_of(visit: Visit) -> Celery:
    """Find the Celery app of the worker that runs a visit.

    Raises:
        UsageError: this process is no worker.
    """
    from tasks.engines import app_with  # noqa: PLC0415 - Celery is imported when it is needed

    app = app_with(getattr(visit, "store", None))
    if app is None:
        raise UsageError(
            f"node {visit.address.node_id!r} is a Celery task, and this process is no Celery worker: the "
            "task was not sent. Start the graph with a Client, and run workers."
        )
    return app


def revoke(app: Celery, reference: str) -> None:
    """Ask all workers not to begin a task; one that runs goes on, and what it says is refused."""
    try:
        app.control.revoke(reference)
    except Exception as error:  # noqa: BLE001 - nothing depends on it
        log.info("task.unrevoked: %s goes on: %r", reference, error)


def _late(name: str, work: Work) -> NodeTimedOut:
    return NodeTimedOut(f"task {name} ({work.reference}) did not end within the node's timeout.")
