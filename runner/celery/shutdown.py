"""The end of a worker: its nodes have some seconds to end; any still running then go to other workers.

1. A signal sets Celery's flags. The worker fetches no doorbell, and its threads end except the heartbeat
   (heartbeat.py), which calls `Shutdown.check` twice a second until the pool has stopped.
2. Nodes go on for `RUNNER_SHUTDOWN_GRACE` seconds, or for none at a cold shutdown.
3. Then `check` returns this process's nodes to the queue, and signals children with nodes to do the same.
4. Children still running after another `HANGS` seconds are killed; a node in a thread is reported.
5. When the pool has stopped, the heartbeat takes the worker off the list.

Without this, a node that never ends would keep a stopping worker and its own lease forever, because
Celery waits for it. Nothing here ends the worker, which may run other tasks.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from celery.worker import state

from runner.celery.doorbells import NODE_TASK
from runner.execution.engine import Engine
from runner.records.workers import HANGS

log = logging.getLogger(__name__)

REMIND_EVERY = 60.0
"""Seconds between two log lines about a worker that hangs."""

MAX_NAMES = 10
"""Most nodes named in one log line."""


class Shutdown:
    """Watches for the end of one worker; call `check` about every half second."""

    def __init__(self, engine: Engine, grace: float) -> None:
        """Give nodes `grace` seconds to end."""
        self._engine, self._grace = engine, grace
        self._since = self._returned = 0.0
        self._remind_after = HANGS

    @property
    def elapsed(self) -> float:
        """The seconds since the worker began to stop; 0 before."""
        return max(0.001, time.monotonic() - self._since) if self._since else 0.0

    def check(self) -> None:
        """Notice that the worker stops; after the grace, return its nodes and report any that go on."""
        cold = _is_set(state.should_terminate)
        if not (cold or _is_set(state.should_stop)):
            return
        if not self._since:
            self._since = time.monotonic()
            running = self._running()
            if running:
                log.info("worker.stopping: %s have %g s to end.", _list(running), self._grace)
            else:
                log.info("worker.stopping: no node is running.")
        if not self._returned and (cold or self.elapsed >= self._grace):
            self._returned = self.elapsed
            self._return_nodes(cold=cold)
        if self._returned and self.elapsed > self._returned + self._remind_after:
            self._remind_after += REMIND_EVERY
            self._end_hanging()

    def _return_nodes(self, *, cold: bool) -> None:
        """Return this process's nodes to the queue, and signal children with nodes to do the same."""
        visits = [
            f"{token.run_id}.{token.node}.{token.visit}" for token in self._engine.leave()
        ]
        if not cold:  # at a cold shutdown Celery itself ends the children
            visits += _signal_children(signal.SIGTERM)
        if visits:
            log.warning(
                "worker.returns: %s go to other workers. Their results here will be refused.",
                _list(visits),
            )

    def _end_hanging(self) -> None:
        """End the children whose nodes ignore the signal; a node in a thread can only be reported."""
        task_ids = _signal_children(signal.SIGKILL)
        running = self._running()
        if task_ids:
            log.warning("worker.killed: the processes of %s were killed.", _list(task_ids))
        elif running:
            log.error(
                "worker.hangs: it began to stop %.0f s ago and still runs %s. Other workers run them now. "
                "End this process: kill -9 %d.",
                self.elapsed,
                _list(running),
                os.getpid(),
            )

    def _running(self) -> list[str]:
        return sorted(str(request.id) for request in _node_requests())


_soft_stops: list[float] = []
"""The times at which this process was told to stop softly; read for each node, so without a lock."""


def stop_softly() -> None:
    """Note that the worker stops when its tasks have ended; Celery sets its flags after that."""
    _soft_stops.append(time.monotonic())


def stopping() -> bool:
    """Return whether this process is a worker that must stop."""
    stop = state.should_stop
    end = state.should_terminate
    return bool(_soft_stops) or not (
        (stop is None or stop is False) and (end is None or end is False)
    )


def _is_set(flag: object) -> bool:
    """Return whether a flag is set: Celery's flags then hold an exit code, which may be 0."""
    return flag is not None and flag is not False


def _node_requests() -> Iterator[Any]:
    # The request's name is the node's, so its task type tells which requests are nodes.
    return (request for request in list(state.active_requests) if request.type == NODE_TASK)


def _signal_children(number: signal.Signals) -> list[str]:
    """Send a signal to the child processes that run nodes, and return the ids of their tasks."""
    task_ids = []
    for request in _node_requests():
        child = getattr(request, "worker_pid", None)
        if child and child != os.getpid():
            with suppress(ProcessLookupError):
                os.kill(child, number)
                task_ids.append(str(request.id))
    return task_ids


def _list(nodes: list[str]) -> str:
    suffix = f" and {len(nodes) - MAX_NAMES} more" if len(nodes) > MAX_NAMES else ""
    return f"{len(nodes)} nodes ({', '.join(nodes[:MAX_NAMES])}{suffix})"
