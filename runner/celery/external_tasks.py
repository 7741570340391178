"""An existing Celery task as a node: a worker sends it, and the node waits without holding a worker.

The task may belong to any app whose workers read the same broker. It needs nothing of ours:
callbacks that travel with its message report how it ended.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from celery import current_task
from kombu.exceptions import EncodeError
from pydantic_core import to_json

from runner.celery.config import CONNECT, settings_of
from runner.errors import DefinitionError, NodeTimedOut, UnstorableError, UsageError
from runner.execution.functions import NodeContext
from runner.records import codec, failures
from runner.records.executors import Visit, function_input
from runner.records.outcomes import ExternalTask, Failed, Outcome, Succeeded
from runner.records.validation import one_line

if TYPE_CHECKING:
    from celery import Celery

log = logging.getLogger(__name__)

Arguments = Sequence[Any] | Callable[[NodeContext], Sequence[Any]]

Keywords = Mapping[str, Any] | Callable[[NodeContext], Mapping[str, Any]]

CELERY_QUEUE = "celery"
"""The queue for a task known only by name: Celery's own default."""


class CeleryTask:
    """An executor whose node is done by a Celery task."""

    kind = "celery"

    def __init__(
        self,
        task: Any,
        *,
        args: Arguments | None = None,
        kwargs: Keywords | None = None,
        queue: str | None = None,
    ) -> None:
        """Name the task, or pass the task object.

        Args:
            task: "shop.charge", or the task itself.
            args: its positional arguments, or a function of the NodeContext that returns them. Without
                `args` and `kwargs` the task gets one argument: the node's only input, or a dict by node
                id if there are several, or the run's task.
            kwargs: its keyword arguments, likewise.
            queue: where to send it; by default the task's own queue, or "celery" for a name.

        Raises:
            DefinitionError: `task` is neither a name nor a Celery task.
        """
        name = getattr(task, "name", None) if hasattr(task, "apply_async") else task
        if not isinstance(name, str) or not name:
            raise DefinitionError(
                f"{task!r} isn't a Celery task: give its name, or the task itself."
            )
        self.name = name
        self._task = task
        self._queue = queue
        self._args, self._kwargs = args, kwargs

    def execute(self, visit: Visit) -> Outcome:
        """Send the task, or return its reported outcome."""
        state = visit.external_task
        if state and (report := state.report) is not None:
            if "error" in report:
                error = failures.load(report["error"])
                # Celery reports no error of a task that it discards or never sent.
                is_unreported = report.get("discarded")
                return Failed(error, raised=failures.restore(error) if is_unreported else None)
            result = report["result"]
            return Succeeded(result, codec.plain(codec.unpack(result)))
        if not isinstance(self._task, str) and self._task.app.conf.task_always_eager:
            return self._run_here(visit)
        app = _worker_app(visit)
        if state and state.late:
            revoke(app, state.reference)
            text = (
                f"task {self.name} ({state.reference}) did not end within the node's timeout."
            )
            return Failed.of(NodeTimedOut(text))
        args, kwargs = self._arguments(visit)
        codec.pack([args, kwargs], f"the arguments of task {self.name}")
        at = visit.address
        reference = (
            state.reference
            if state
            else f"{at.run_id}.{at.node_id}.{at.visit}.{visit.attempt}.task"
        )
        where = {
            "run_id": at.run_id,
            "node": at.node_id,
            "visit": at.visit,
            "reference": reference,
            "queue": _queue_of_node(app),
        }
        queue = self.queue(app)
        description = f"task {self.name}{queue and f' on queue {queue}'}"
        return ExternalTask(
            reference, lambda: self._send(app, where, args, kwargs), description
        )

    def _run_here(self, visit: Visit) -> Outcome:
        """Run the task in this process, as Celery does in its own tests."""
        args, kwargs = self._arguments(visit)
        eager = self._task.apply(args, kwargs)
        if eager.failed():
            return Failed.of(eager.result)
        result = packed_result(eager.result, f"task {self.name}")
        return Succeeded(result, codec.plain(codec.unpack(result)))

    def _arguments(self, visit: Visit) -> tuple[list[Any], dict[str, Any]]:
        if self._args is None and self._kwargs is None:
            return [function_input(visit.task, visit.inputs)[1]], {}
        context = NodeContext(visit)
        args = self._args(context) if callable(self._args) else self._args
        kwargs = self._kwargs(context) if callable(self._kwargs) else self._kwargs
        return list(args or ()), dict(kwargs or {})

    def queue(self, app: Celery) -> str:
        """Return the queue on which a worker's app sends the task; "" if a router of that app fails."""
        queue_name = self._named_queue(app) or getattr(self._task, "queue", None)
        options = {"queue": queue_name} if queue_name else {}
        try:
            queue = self._sender(app).amqp.router.route(options, self.name).get("queue", "")
        except Exception as error:  # noqa: BLE001 - the send meets it again, and is repeated
            log.info(
                "external_task.unrouted: the queue of %s is not known: %r", self.name, error
            )
            return ""
        return str(getattr(queue, "name", queue))

    def _sender(self, app: Celery) -> Celery:
        return app if isinstance(self._task, str) else self._task.app

    def _named_queue(self, app: Celery) -> str | None:
        # A name that this app doesn't know is another app's task: our default queue is not where it is.
        is_foreign = (
            isinstance(self._task, str)
            and self.name not in app.tasks
            and app.conf.task_default_queue == settings_of(app).messages_queue
        )
        return self._queue or (CELERY_QUEUE if is_foreign else None)

    def _send(
        self, app: Celery, where: dict[str, Any], args: list[Any], kwargs: dict[str, Any]
    ) -> None:
        queue = self._named_queue(app)
        options = {
            "task_id": where["reference"],
            # As plain dicts: YAML writes no other kind.
            "link": dict(callback(app, "runner.report", where)),
            "link_error": dict(callback(app, "runner.report_error", where)),
            "retry": False,
            **({"queue": queue} if queue else {}),
        }
        with self._sender(app).producer_or_acquire() as producer:
            producer.connection.ensure_connection(**CONNECT)
            try:
                if isinstance(self._task, str):
                    app.send_task(self.name, args, kwargs, producer=producer, **options)
                else:
                    self._task.apply_async(args, kwargs, producer=producer, **options)
            except (EncodeError, TypeError) as error:
                raise UnstorableError(
                    f"task {self.name} can't be sent with these arguments: {error}"
                ) from error


def packed_result(result: object, reference: str) -> codec.JSON:
    """Pack a task's result. Its work is done, so a type that can't be stored is stored as JSON."""
    name = f"the result of {reference}"
    try:
        return codec.pack(result, name)
    except UnstorableError as refusal:
        log.warning("report.converted: %s Its JSON form is stored instead.", one_line(refusal))
        return codec.pack(
            json.loads(to_json(result, inf_nan_mode="strings", fallback=str)), name
        )


def callback(app: Celery, name: str, visit: dict[str, Any]) -> Any:
    """Return the signature that travels with a task's message; our workers have declared its queue."""
    return app.signature(name, kwargs=visit, queue=visit["queue"], declare=[], expires=None)


def _queue_of_node(app: Celery) -> str:
    """Return the queue that the running node came from: at least one worker serves it."""
    delivery = current_task.request.delivery_info if current_task else None
    return str((delivery or {}).get("routing_key") or settings_of(app).messages_queue)


def _worker_app(visit: Visit) -> Celery:
    """Return the Celery app of the worker that runs a visit.

    Raises:
        UsageError: this process isn't a worker.
    """
    from runner.celery.engines import app_of_store  # noqa: PLC0415 - a graph's module needs no Celery

    app = app_of_store(getattr(visit, "store", None))
    if app is None:
        raise UsageError(
            f"node {visit.address.node_id!r} is a Celery task, and this process isn't a Celery worker: the "
            "task was not sent. Start the graph with a Client, and run workers; in a test, pass the task "
            "itself and set task_always_eager."
        )
    return app


def revoke(app: Celery, reference: str) -> None:
    """Ask all workers not to start a task; a running one goes on, and its report is refused."""
    try:
        app.control.revoke(reference)
    except Exception as error:  # noqa: BLE001 - nothing depends on it
        log.info("task.unrevoked: %s goes on: %r", reference, error)
