"""The worker's log: its format, and Celery's lines about nodes.

"received" and "succeeded" are logged at DEBUG for nodes, and still at INFO for other tasks. The two
lines cost a twelfth of the processor time that a worker spends on a node, and a store's events,
Flower and `runner runs show` say the same. Lines about a node's retry, failure or wait are
unchanged.
"""

from __future__ import annotations

import logging
from functools import wraps
from typing import Any

from celery import signals
from celery._state import get_current_task
from celery.app import trace

from runner.celery.doorbells import NODE_TASK
from runner.execution.telemetry import JsonFormatter
from runner.settings import Settings

log_received = logging.getLogger("celery.worker.strategy").debug
"""Logs that a node was received; passed to Celery's strategy as `info`."""

QUIET = "_runner_quiet"
"""The attribute that marks the patched function."""


def log_nodes_at_debug() -> None:
    """Make Celery log a node's success at DEBUG; harmless when called twice."""
    write = trace.info
    if getattr(write, QUIET, False):
        return

    @wraps(write)
    def info(fmt: str, context: dict[str, Any]) -> None:
        # The context names the graph and node, as in Flower; only the task itself shows its kind.
        if get_current_task().name == NODE_TASK:
            trace.logger.debug(fmt, context, extra={"data": context})
        else:
            write(fmt, context)

    setattr(info, QUIET, True)
    trace.info = info


def format_logs(settings: Settings) -> None:
    """Use the log format of the settings once Celery has set up its log."""
    if settings.log_format == "json":
        for signal in (signals.after_setup_logger, signals.after_setup_task_logger):
            signal.connect(_log_json, weak=False, dispatch_uid="runner")


def _log_json(logger: logging.Logger, **_: object) -> None:
    for handler in logger.handlers:
        handler.setFormatter(JsonFormatter())
