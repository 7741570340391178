"""The running node, for logs and traces: a context variable, and observers around each execution.

An observer that raises is logged and skipped: observing never breaks a run.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import Any

from runner.execution.context import ClaimedVisit
from runner.immutable import immutable
from runner.records.outcomes import (
    Delegated,
    Expanded,
    ExternalTask,
    Failed,
    Interrupted,
    Outcome,
    Succeeded,
)
from runner.records.run import RunRecord

log = logging.getLogger(__name__)


@immutable
class RunningNode:
    """The node that runs: names and numbers only, never data."""

    run_id: str
    graph: str
    node: str
    visit: int
    attempt: int


OUTCOMES: Mapping[type, str] = {
    Succeeded: "completed",
    Failed: "failed",
    Interrupted: "waiting",
    Delegated: "delegated",
    Expanded: "expanded",
    ExternalTask: "handed",
}
"""Names of the outcomes of an execution in traces and metrics."""

Observer = Callable[
    [RunningNode, ClaimedVisit], AbstractContextManager[Callable[[Outcome], object]]
]
"""A context manager around a node's execution; the callable that it yields receives the outcome."""

_place: ContextVar[RunningNode | None] = ContextVar("runner_place", default=None)

_observers: list[Observer] = []


def running_node() -> RunningNode | None:
    """Return the node whose code runs here, or None outside of nodes."""
    return _place.get()


def attach(observer: Observer) -> None:
    """Add an observer of every execution of a node in this process; adding it again changes nothing."""
    if observer not in _observers:
        _observers.append(observer)


def is_attached(observer: Observer) -> bool:
    return observer in _observers


def detach(observer: Observer) -> None:
    """Remove an observer; a detached one is ignored."""
    if observer in _observers:
        _observers.remove(observer)


def callers_trace() -> str:
    """Return the traceparent of the caller's open span; "" without a span or OpenTelemetry."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return ""
    try:
        context = trace.get_current_span().get_span_context()
        flags = int(context.trace_flags)
        if context.is_valid:
            return f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}"
        return ""
    except Exception:
        log.exception("observer.failed: the run starts without the trace of its caller.")
        return ""


def trace_id(run_id: str) -> str:
    """Return the trace id of a run that was started outside of any span: 32 hexadecimal digits."""
    return hashlib.blake2b(run_id.encode(), digest_size=16).hexdigest()


def trace_of(outermost: RunRecord) -> str:
    """Return the id of the trace that holds the spans of a run and of the runs inside it."""
    return outermost.trace.split("-")[1] if outermost.trace else trace_id(outermost.run_id)


class RunFilter(logging.Filter):
    """Sets on every log record `run_id`, `graph`, `node`, `visit` and `attempt`: empty outside of nodes.

    Add it to a handler, so that it sees the records of all loggers.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields; every record passes."""
        node = running_node()
        record.run_id, record.graph = (node.run_id, node.graph) if node else ("", "")
        record.node, record.visit, record.attempt = (
            (node.node, node.visit, node.attempt) if node else ("", "", "")
        )
        return True


class JsonFormatter(logging.Formatter):
    """Writes a log record as one line of JSON, with the node whose code runs there.

    Always present: `time` (RFC 3339, UTC), `level`, `logger`, `message`, `process`. In a node also
    `run_id`, `graph`, `node`, `visit` and `attempt`; with an error `exception`; and the fields
    passed as `extra`.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line: ASCII, with line ends and control characters escaped."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
        }
        if (node := running_node()) is not None:
            line |= asdict(node)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        extra = {
            name: value for name, value in vars(record).items() if name not in PLAIN_RECORD
        }
        return json.dumps({**extra, **line}, default=str)


PLAIN_RECORD = frozenset(
    {
        *vars(logging.makeLogRecord({})),
        "message",
        "asctime",
        "run_id",
        "graph",
        "node",
        "visit",
        "attempt",
    }
)
"""Attributes of a record without `extra`, including those that `RunFilter` sets."""


def observed(visit: ClaimedVisit, execute: Callable[[], Outcome]) -> Outcome:
    """Run a node's code in this context, with the running node set and every observer around it."""
    address = visit.address
    node = RunningNode(
        address.run_id, visit.graph_id, address.node_id, address.visit, visit.attempt
    )
    _place.set(node)
    for observer in _observers:
        execute = partial(_watched, observer, node, visit, execute)
    return execute()


def _watched(
    observer: Observer, node: RunningNode, visit: ClaimedVisit, execute: Callable[[], Outcome]
) -> Outcome:
    around: AbstractContextManager[Callable[[Outcome], object]]
    try:
        around = observer(node, visit)
        finish = around.__enter__()
    except Exception:
        log.exception("observer.failed: the node runs without it.")
        # The node doesn't run here: this error would become the context of the node's own.
        around, finish = nullcontext(lambda _: None), lambda _: None
    try:
        outcome = execute()
    except BaseException as error:
        _quietly(around.__exit__, type(error), error, error.__traceback__)
        raise
    _quietly(finish, outcome)
    _quietly(around.__exit__, None, None, None)
    return outcome


def _quietly(call: Callable[..., object], *args: object) -> None:
    try:
        call(*args)
    except Exception:
        log.exception("observer.failed: the node's outcome doesn't change.")
