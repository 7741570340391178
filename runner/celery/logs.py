"""The worker's log: its format, and Celery's lines of nodes.

"received" and "succeeded" are at DEBUG for nodes; for other tasks they stay at INFO. The two lines cost a
twelfth of a worker's processor time for a node, and a store's events, Flower and `runner runs show` say the
same. The lines of a node's retry, failure or wait are unchanged.
"""

from __future__ import annotations

import logging
from functools import wraps
from typing import Any

from celery import current_task, signals
from celery.app import trace

from runner.celery.doorbells import NODE_TASK
from runner.execution.telemetry import JsonFormatter
from runner.settings import Settings

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


def format_logs(settings: Settings) -> None:
    """Have Celery's log written in the format of the settings, once it is set up."""
    if settings.log_format == "json":
        for signal in (signals.after_setup_logger, signals.after_setup_task_logger):
            signal.connect(_log_json, weak=False, dispatch_uid="runner")


def _log_json(logger: logging.Logger, **_: object) -> None:
    for handler in logger.handlers:
        handler.setFormatter(JsonFormatter())
