"""The task behind every doorbell: its id names the visit, the engine does the rest."""

from __future__ import annotations

import logging
import time
from typing import Any

from celery import shared_task
from celery.exceptions import Ignore, Reject, Retry

from runner.delivery import Delivery
from runner.errors import ConflictError, NodeFailed, StoreError, UsageError
from runner.failures import ErrorRecord
from tasks.celery_task import revoke
from tasks.doorbells import NODE_TASK
from tasks.engines import engine_of

log = logging.getLogger(__name__)

OTHERS = {
    "expanded": "its items",
    "limited": "its turn: a limit is reached",
    "held": "migration: its graph is not what its run began with",
    "retrying": "a worker that has its graph",
    "crowded": "its turn: another node on its last life runs in this process",
}
"""What a node waits for that is not one question, graph or task, by the word of its delivery."""


@shared_task(bind=True, name=NODE_TASK, ignore_result=True, acks_late=True, throws=(NodeFailed,))
def run_node(self: Any) -> None:
    """Claim the visit that this task's id names, run its node and commit how it ended."""
    engine = engine_of(self.app)
    self.request.began = time.monotonic()
    try:
        delivery = engine.deliver(*visit_of(self.request.id))
    except (StoreError, ConflictError, UsageError) as error:
        log.warning("doorbell.refused: %s: %s", self.request.id, error)
        raise Reject(str(error), requeue=False) from error
    if delivery.retry_in:
        engine.sweep_in(delivery.retry_in)
    if delivery.word == "revoked":
        revoke(self.app, delivery.reference)
    show(self, delivery)


def show(task: Any, delivery: Delivery) -> None:
    """Let the task end as its node did, for monitors: the store knows already, nothing is sent again."""
    match delivery:
        case Delivery(word="settled" | "told", error=None):
            return
        case Delivery(word="settled", error=ErrorRecord() as error):
            raise failure(error)
        case Delivery(word="retrying", error=ErrorRecord() as error):
            raise Retry(exc=failure(error), when=round(delivery.retry_in, 3))
        case Delivery(word="cancelled" | "revoked"):
            tell(task, "task-revoked", terminated=False, signum=None, expired=False)
        case _ if what := awaited(delivery):
            tell(task, "task-waiting", result=f"WAITING for {what}")
    # Neither a success nor a failure: it waits, comes again, or was somebody else's.
    raise Ignore


def awaited(delivery: Delivery) -> str:
    """Say what a node waits for, else "". Of questions the names only, for they may hold secrets."""
    if delivery.interrupts:
        return f"a person: {', '.join(each.name for each in delivery.interrupts)}"
    if delivery.child:
        return f"run {delivery.child} of its graph"
    if delivery.reference and delivery.word in {"handed", "ready"}:
        return f"task {delivery.reference}"
    return OTHERS.get(delivery.word, "")


def failure(error: ErrorRecord) -> NodeFailed:
    """Make what the task raises for its node: the error in one line, the node's own traceback as a note."""
    made = NodeFailed(str(error))
    if error.traceback:
        made.add_note(error.traceback)
    return made


def visit_of(task_id: str) -> tuple[str, str, int, int]:
    """Read `run.node.visit.attempt`; the node's id may hold dots.

    Raises:
        UsageError: it is not such an id.
    """
    run_id, _, rest = task_id.partition(".")
    node, _, numbers = rest.rpartition(".")
    node, _, visit = node.rpartition(".")
    if not (run_id and node and visit.isdecimal() and numbers.isdecimal()):
        raise UsageError(f"a task {NODE_TASK} must have an id run.node.visit.attempt, not {task_id!r}.")
    return run_id, node, int(visit), int(numbers)


def tell(task: Any, kind: str, **told: object) -> None:
    """Send an event about a task, where this worker sends any."""
    if task.app.conf.worker_send_task_events:
        task.send_event(kind, retry=False, **told)
