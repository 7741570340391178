"""How a worker stops: its nodes have some time to end; what then still runs is given to other workers.

A node that never ends would else keep a stopping worker, and itself, for ever: Celery waits for it, and
the worker goes on renewing its lease. Nothing here ends the worker, which may have other tasks.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from celery.concurrency.base import BasePool
from celery.worker import state

from runner.engine import Engine
from runner.store.roster import HANGS
from tasks.doorbells import NODE_TASK

log = logging.getLogger(__name__)

REMIND = 60.0
"""Seconds between two log lines about a worker that hangs."""

NAMED = 10
"""So many nodes are named in one log line."""


class Stopping:
    """Watches one worker; `look` is to be called every now and then."""

    def __init__(self, engine: Engine, grace: float) -> None:
        """`grace` are the seconds that nodes have to end."""
        self._engine, self._grace = engine, grace
        self._since = self._gave_up = 0.0
        self._tells = HANGS

    @property
    def elapsed(self) -> float:
        """The seconds since the worker was told to stop; 0 before."""
        return max(0.001, time.monotonic() - self._since) if self._since else 0.0

    def look(self) -> None:
        """See whether the worker was told to stop, and what is to be done about its nodes."""
        cold = _told(state.should_terminate)
        if not (cold or _told(state.should_stop)):
            return
        if not self._since:
            self._since = time.monotonic()
            log.info("worker.stopping: %s", _names(self._running(), f"has {self._grace:g} s for"))
        if not self._gave_up and (cold or self.elapsed >= self._grace):
            self._gave_up = self.elapsed
            self._give_up(cold=cold)
        if self._gave_up and self.elapsed > self._gave_up + self._tells:
            self._tells += REMIND
            self._complain()

    def _give_up(self, *, cold: bool) -> None:
        """Give up the nodes of this process, and tell the children that run some to do so."""
        given = [f"{each.run_id}.{each.node}.{each.visit}" for each in self._engine.leave()]
        if not cold:  # else Celery itself ends the children
            given += _end_children(signal.SIGTERM)
        if given:
            log.warning(
                "worker.gives_up: %s. What they still do here is refused.", _names(given, "other workers run")
            )

    def _complain(self) -> None:
        """A node ignores what it is told: say so, and end its process where it has one of its own."""
        killed, left = _end_children(signal.SIGKILL), self._running()
        if killed:
            log.warning("worker.killed: %s", _names(killed, "ended the processes of"))
        elif left:
            log.error(
                "worker.hangs: it was told to stop %.0f s ago, and %s. They were given to other workers. "
                "End this one: kill -9 %d.",
                self.elapsed,
                _names(left, "still runs"),
                os.getpid(),
            )

    def _running(self) -> list[str]:
        return sorted(str(request.id) for request in _requests())


def spare(pool: Any) -> None:
    """Let a cold stop leave threads alone: they can't be ended, and Celery makes an error of that.

    On a solo pool that error would come up in the middle of the node that runs, which would fail.
    """
    if getattr(pool.terminate_job, "__func__", None) is BasePool.terminate_job:
        pool.terminate_job = lambda *_, **__: None


def _told(flag: object) -> bool:
    """Celery's flags hold an exit code, which may be 0, once they are set."""
    return flag is not None and flag is not False


def _requests() -> Iterator[Any]:
    # A request is named after its node; its task is ours.
    return (each for each in list(state.active_requests) if each.type == NODE_TASK)


def _end_children(sign: signal.Signals) -> list[str]:
    """Send a signal to the children that run nodes, and name what they run."""
    ended = []
    for request in _requests():
        child = getattr(request, "worker_pid", None)
        if child and child != os.getpid():
            with suppress(ProcessLookupError):
                os.kill(child, sign)
                ended.append(str(request.id))
    return ended


def _names(nodes: list[str], what: str) -> str:
    more = f" and {len(nodes) - NAMED} more" if len(nodes) > NAMED else ""
    return f"{what} {len(nodes)} nodes: {', '.join(nodes[:NAMED])}{more}" if nodes else f"{what} no node"
