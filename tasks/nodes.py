"""The task behind every doorbell: its id names the visit, the engine does the rest."""

from __future__ import annotations

import logging
from typing import Any

from celery import shared_task
from celery.exceptions import Ignore, Reject

from runner.engine import Delivery
from runner.errors import ConflictError, StoreError, UsageError
from tasks.doorbells import NODE_TASK
from tasks.engines import engine_of

log = logging.getLogger(__name__)


@shared_task(bind=True, name=NODE_TASK, ignore_result=True, acks_late=True)
def run_node(self: Any) -> None:
    """Claim the visit that this task's id names, run its node and commit how it ended."""
    try:
        delivery = engine_of(self.app).deliver(*visit_of(self.request.id))
    except (StoreError, ConflictError, UsageError) as error:
        log.warning("doorbell.refused: %s: %s", self.request.id, error)
        raise Reject(str(error), requeue=False) from error
    if delivery.interrupts:
        show_waiting(self, delivery)
    if delivery.word != "settled":
        # Neither a success nor a failure: it waits, comes again, or was somebody else's.
        raise Ignore


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


def show_waiting(task: Any, delivery: Delivery) -> None:
    """Tell Flower that the node waits, and for what; names only, for a question may hold secrets."""
    if task.app.conf.worker_send_task_events:
        names = ", ".join(interrupt.name for interrupt in delivery.interrupts)
        task.send_event("task-waiting", result=f"WAITING for a person: {names}", retry=False)
