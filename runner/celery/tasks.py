"""The Celery tasks. Each decodes its message, calls the engine and translates errors."""

from __future__ import annotations

import functools
import logging
import re
import sys
import time
import traceback
from dataclasses import asdict
from typing import Any

from billiard.einfo import ExceptionInfo, ExceptionWithTraceback, Traceback
from billiard.exceptions import Terminated, WorkerLostError
from celery import Celery, Task, current_app, shared_task
from celery.exceptions import Ignore, Retry, TaskPredicate
from celery.result import AsyncResult
from celery.utils.saferepr import saferepr
from celery.utils.serialization import get_pickled_exception

from runner.celery.config import settings_of
from runner.celery.doorbells import NODE_TASK, drop_items, visit_of
from runner.celery.engines import engine_of, outbox_of
from runner.celery.external_tasks import callback, packed_result, revoke
from runner.celery.inline_continuation import (
    ContinuingRequest,
    NextVisit,
    claims,
    may_continue,
    nonce_of,
)
from runner.celery.kombu_fixes import body_text, cache_traceback_code, message_of
from runner.celery.logs import log_nodes_at_debug
from runner.celery.measuring import measure_wait, waiting_since
from runner.errors import (
    ConflictError,
    NodeFailed,
    PayloadTooLarge,
    StoreError,
    UnstorableError,
    UsageError,
)
from runner.execution.engine import DoorbellOutcome
from runner.records import failures
from runner.records.failures import ErrorRecord
from runner.records.messages import traceparent_of
from runner.records.validation import one_line

log = logging.getLogger(__name__)

# Each process that runs one of our tasks imports this module, even a pool's child that is a fresh
# interpreter.
cache_traceback_code()
log_nodes_at_debug()

# `runner.node`: the doorbell. Its task id names the visit.

WAITS_FOR = {
    "expanded": "its items",
    "limited": "its turn: a limit is reached",
    "held": "an operator: it is held, and its run says why",
    "left": "a worker that has its graph",
    "retrying": "a worker that has its graph",
    "waiting": "the answer to a question of another node",
    "crowded": "its turn: another node in quarantine runs in this process",
}
"""Reasons for waiting, besides a question, graph or task, by the word of the node's delivery."""


OURS: dict[str, Any] = {
    "apply_async": Task.apply_async,
    "autoretry_for": (),
    "ignore_result": True,
}
"""Options that hold whatever the base class of the app's tasks is."""


UNKNOWN_RUN = (
    "run.unknown: %s: this store has no such run. It was deleted, or workers of one broker have "
    "different stores: compare their RUNNER_REDIS_URL."
)


class NodeEvent(Ignore):
    """Ends a node's task with an event that is neither a success nor a failure."""

    def __init__(self, kind: str, fields: dict[str, Any]) -> None:
        """Name the event with `kind`, such as "task-waiting"."""
        super().__init__(kind, fields)
        self.kind, self.fields = kind, fields


class FailedElsewhere(NodeFailed):
    """The error of a node that failed with a run inside it, with an external task, or by a decision.

    Celery logs it as expected, and error trackers leave it out: the failure itself is reported
    where it happened.
    """


class ShownFailure(NodeFailed):
    """Stands for an error raised by a node's code that could not be loaded; it reads the same."""

    def __repr__(self) -> str:
        """Return the `repr` of the original error."""
        return str(self)


class SentFailure(ExceptionInfo):
    """A failure that leaves its process without its error: an unloadable error would end the worker."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the failure with an error that every process can load."""
        shown = ShownFailure(saferepr(get_pickled_exception(self.exception)))
        return {**vars(self), "type": ShownFailure, "exception": shown}


def show_own_frames(self: Any, exc: Any, *arguments: Any) -> None:
    """Remove the frames of Celery and this library from the traceback that is logged and sent to monitors."""
    super(type(self), self).on_failure(exc, *arguments)
    frames = failures.own_frames(exc)
    einfo = arguments[-1]
    einfo.__class__ = SentFailure
    einfo.tb = Traceback(frames)
    einfo.traceback = "".join(traceback.format_exception(type(exc), exc, frames))


class NodeRequest(ContinuingRequest):
    """Sends the event of a node's end from the worker's main process, as Celery does with its own events.

    Only the main process knows whether events are on: by a setting, by `-E`, or by `enable_events`.
    """

    def maybe_expire(self) -> bool:
        """Return False: an app may give all its messages an expiry, and each doorbell would be discarded."""
        return False

    def on_failure(self, exc_info: Any, *args: Any, **options: Any) -> Any:
        """Handle the task's exception; for a NodeEvent, also send its event."""
        error = exc_info.exception
        if isinstance(error, ExceptionWithTraceback):
            error = error.exc
        if isinstance(error, NodeEvent):
            self.send_event(error.kind, **error.fields)
        return super().on_failure(exc_info, *args, **options)


@functools.cache
def one_word(hostname: str | None) -> str:
    """Return a worker's name as claims carry it: without spaces, quotes and backslashes."""
    return re.sub(r'[\x00-\x20"\\]', "_", hostname or "")


@shared_task(
    bind=True,
    name=NODE_TASK,
    **OURS,
    acks_late=True,
    throws=(FailedElsewhere,),
    on_failure=show_own_frames,
    Strategy="runner.celery.inline_continuation:continue_inline",
    Request="runner.celery.tasks:NodeRequest",
)
def run_node(self: Any) -> NextVisit | None:
    """Claim the visit that this task's id names, run its node and commit its outcome.

    If the settle claims another visit, that visit continues on this task's slot.
    """
    request = self.request
    request.began = time.monotonic()  # first: its time limit counts the imports of a new child
    engine = engine_of(self.app)
    engine.worker = one_word(request.hostname)
    try:
        run_id, node, visit, attempt = visit_of(request.id)
        nonce = nonce_of(request)
        check = may_continue(request)
        claim = claims.take(request.id, nonce)
        wait = None if nonce else waiting_since(engine.store, run_id, node)
        delivery = (
            engine.execute(claim, check)
            if claim
            else engine.deliver(run_id, node, visit, attempt, nonce=nonce, may_continue=check)
        )
        if delivery.word == "stale":
            delivery = engine.end_without_worker(run_id, node, visit, attempt) or delivery
    except (StoreError, ConflictError, UsageError) as error:
        log.warning("doorbell.refused: %s: %s", one_line(request.id), one_line(error))
        # Celery's Reject would log all tracebacks of the refusal.
        raise NodeEvent("task-rejected", {"requeue": False}) from None
    if wait is not None and delivery.graph_id:
        measure_wait(engine.store, wait, delivery.graph_id)
    if delivery.retry_in is not None:
        engine.sweep_in(delivery.retry_in)
    if delivery.word == "cancelled":
        drop_items(self.app, engine.registry, request.id, request.delivery_info)
    if delivery.word == "revoked":
        revoke(self.app, delivery.reference)
    if delivery.word == "unknown":
        log.warning(UNKNOWN_RUN, one_line(request.id))
    if delivery.graph_id:
        name_task(request, f"{delivery.graph_id}/{node}")
    end_task(delivery, self.app, run_id)
    following = delivery.following
    return NextVisit(following, claims.put(following)) if following else None


def end_revoked(
    sender: Any, request: Any, *, terminated: bool, expired: bool, **_: object
) -> None:
    """Fail the node of a task that was revoked and discarded: no worker would run it.

    A terminated task's node ends here when its doorbell rings again, since every worker discards
    that. A task that works for a node has the node fail at once.
    """
    for errback in request.errbacks or ():
        if errback["task"] == report_error.name:
            fate = "expired before a worker took it" if expired else "was revoked"
            text = f"task {sender.name} ({one_line(request.id)}) {fate}."
            report_error(request, NodeFailed(text), discarded=text, **errback["kwargs"])
    if sender.name != NODE_TASK or terminated:
        return
    try:
        engine = engine_of(sender.app)
        engine.worker = one_word(request.hostname)
        engine.end_revoked(*visit_of(request.id))
    except (StoreError, ConflictError, UsageError) as error:
        log.warning("node.unrevoked: %s: %s", one_line(request.id), one_line(error))


def end_task(delivery: DoorbellOutcome, app: Celery, run_id: str) -> None:
    """End the task as its node did, for monitors: the store has the outcome; nothing is published again."""
    match delivery:
        case DoorbellOutcome(word="settled" | "end_reported", error=None):
            return
        case DoorbellOutcome(word="settled", error=ErrorRecord() as error):
            raise failure_of(delivery.raised, error)
        case DoorbellOutcome(word="retrying", error=ErrorRecord() as error):
            shown = ShownFailure(error.shown) if delivery.raised else node_failed(error)
            raise Retry(exc=shown, when=round(delivery.retry_in or 0, 3))
        case DoorbellOutcome(word="cancelled" | "revoked"):
            raise NodeEvent(
                "task-revoked", {"terminated": False, "signum": None, "expired": False}
            )
        case _ if reason := waits_for(delivery):
            page = settings_of(app).page(f"/runs/{run_id}")
            raise NodeEvent(
                "task-waiting", {"result": f"WAITING for {reason}{page and f', see {page}'}"}
            )
    raise Ignore  # another worker had it


def waits_for(delivery: DoorbellOutcome) -> str:
    """Return the reason a node waits, or "". Questions give their names only: the rest may be secret."""
    if delivery.interrupts:
        return f"a person: {', '.join(interrupt.name for interrupt in delivery.interrupts)}"
    if delivery.child:
        return f"run {delivery.child} of its graph"
    if delivery.reference and delivery.word in {"handed", "ready"}:
        return f"task {delivery.reference}"
    return WAITS_FOR.get(delivery.word, "")


def name_task(request: Any, name: str) -> None:
    """Make Celery's log and Sentry name a task by its graph and node."""
    request.shadow = name
    if (sentry := sys.modules.get("sentry_sdk")) is not None:
        sentry.get_current_scope().set_transaction_name(name, source="task")


def failure_of(raised: BaseException | None, record: ErrorRecord) -> Exception:
    """Return the task's error for a node's error: the raised one, if it can be the error of a task."""
    if raised is None:
        return node_failed(record, FailedElsewhere)
    # These mean something else to Celery; a MemoryError ends its worker.
    means_more = (TaskPredicate, MemoryError, WorkerLostError, Terminated)
    if isinstance(raised, Exception) and not isinstance(raised, means_more):
        return raised
    return NodeFailed(str(record)).with_traceback(raised.__traceback__)


def node_failed(record: ErrorRecord, kind: type[NodeFailed] = NodeFailed) -> NodeFailed:
    """Return the task's error for a node's error: one line, with the node's own traceback as a note."""
    error = kind(str(record))
    if record.traceback:
        error.add_note(record.traceback)
    return error


# `runner.respond` and `runner.start`: messages for people who already use Celery.

UNTIL_STORED: dict[str, Any] = {
    **OURS,
    "acks_late": True,
    "autoretry_for": (StoreError,),
    "default_retry_delay": 5,
    "max_retries": None,
}
"""Options for tasks that keep their message until the store has it, retrying every five seconds."""

AS_SENT: dict[str, Any] = {
    **UNTIL_STORED,
    "Strategy": "runner.celery.kombu_fixes:as_sent",
    "Request": "runner.celery.kombu_fixes:ExpiringRequest",
}


@shared_task(bind=True, name="runner.respond", **AS_SENT)
def respond(self: Any, *args: object, **message: object) -> None:
    """Answer a question: `app.send_task("runner.respond", kwargs={"interrupt_id": ..., "response": ...})`."""
    _put_on_stream(self, "responses", args, message)


@shared_task(bind=True, name="runner.start", **AS_SENT)
def start(self: Any, *args: object, **message: object) -> None:
    """Start a run: `app.send_task("runner.start", kwargs={"graph": ..., "task": ...})`."""
    _put_on_stream(self, "starts", args, message)


def _put_on_stream(
    task: Any, door: str, args: tuple[object, ...], message: dict[str, object]
) -> None:
    outbox = outbox_of(task.app)
    traceparent = traceparent_of(task.request.get("traceparent")) if door == "starts" else ""
    try:
        body = message_of(task.name, task.request.id, args, message, traceparent)
    except UsageError as error:
        outbox.write_dead_letter(task.name, body_text(message), str(error))
        return
    outbox.send(getattr(outbox.keys, door), body)


# `runner.report` and `runner.report_error`: how a Celery task that works for a node reports its
# end.
#
# Whichever worker ran the task publishes `link` and `link_error` to our own queue. If our tasks are
# is installed there too, an error arrives whole; otherwise Celery only says which task failed.

UNKNOWN_ERROR = (
    "task {0} failed; Celery gives other workers no more than that. Its own worker's log has the reason. "
    "Call runner.celery.install(app) on its app to get the exception here."
)


PRIVATE: dict[str, Any] = {
    "Strategy": "runner.celery.kombu_fixes:private",
    "Request": "runner.celery.kombu_fixes:PrivateRequest",
}


@shared_task(bind=True, name="runner.report", **UNTIL_STORED, **PRIVATE)
def report(self: Any, result: object = None, *, error: Any = None, **visit: Any) -> None:
    """Record the result of a task, or its error, and wake its node."""
    try:
        outcome = (
            {"error": error, "discarded": "discarded" in visit}
            if error
            else {"result": packed_result(result, visit["reference"])}
        )
        _report(self.app, visit, outcome)
    except (PayloadTooLarge, UnstorableError) as refusal:
        _report(self.app, visit, {"error": asdict(failures.record(refusal))})


def _report(app: Celery, visit: dict[str, Any], outcome: dict[str, Any]) -> None:
    status = engine_of(app).report(
        visit["run_id"], visit["node"], visit["visit"], visit["reference"], outcome
    )
    if status == "reported" and "discarded" in visit:
        log.warning("task.discarded: %s Its node fails.", visit["discarded"])
    reference = one_line(visit["reference"])
    if status == "unknown":
        log.warning(UNKNOWN_RUN, reference)
    elif status != "reported":
        log.info("report.refused: no node waits for task %s any more (%s).", reference, status)


@shared_task(name="runner.report_error", **OURS, **PRIVATE)
def report_error(
    request: Any, exc: BaseException | None = None, _traceback: object = None, **visit: Any
) -> None:
    """Forward a task's error; the task's worker calls this, or runs it as a task with only the id."""
    if exc is None:
        exc = _stored_error(str(request)) or NodeFailed(
            UNKNOWN_ERROR.format(visit["reference"])
        )
    record = asdict(failures.record(exc))
    callback(current_app, "runner.report", {**visit, "error": record}).apply_async()


def _stored_error(task_id: str) -> BaseException | None:
    """Return a task's error from the result backend, if this app shares one with the task's worker."""
    try:
        result = AsyncResult(task_id, app=current_app).result
    except Exception:  # noqa: BLE001 - without a reachable backend the error is unknown
        return None
    return result if isinstance(result, BaseException) else None
