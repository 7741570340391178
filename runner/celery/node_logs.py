"""Celery's log lines of nodes: "received" and "succeeded" are at DEBUG; those of other tasks stay at INFO.

The two lines cost a twelfth of a worker's processor time for a node, and a store's events, Flower and
`runner runs show` say the same. What a node's retry, failure or wait logs is unchanged.
"""

from __future__ import annotations

import logging
from functools import wraps
from typing import Any

from celery import current_task
from celery.app import trace

from runner.celery.doorbells import NODE_TASK

log_received = logging.getLogger("celery.worker.strategy").debug
"""Logs that a node was received; for the argument `info` of Celery's strategy."""

QUIET = "_runner_quiet"
"""The attribute of the patched function, which marks it."""


def log_nodes_at_debug() -> None:
    """Make Celery log at DEBUG that a node has succeeded; harmless twice."""
    write = trace.info
    if getattr(write, QUIET, False):
        return

    @wraps(write)
    def info(fmt: str, context: dict[str, Any]) -> None:
        # The context names the graph and the node, as Flower does: only the task itself tells.
        if current_task.name == NODE_TASK:
            trace.logger.debug(fmt, context, extra={"data": context})
        else:
            write(fmt, context)

    setattr(info, QUIET, True)
    trace.info = info
