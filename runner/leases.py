"""Leases of this process: one thread renews all of them, and tells a node when its lease is gone.

The same thread watches the nodes' timeouts. The code of a node that is past its deadline is told at
its next check; the node itself is given up at once, whatever its code does, by a callback.
The thread starts with the first lease, so after a fork each process has its own.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from runner.errors import LeaseLost, NodeTimedOut, RunStopped, StoreError
from runner.ports import Store, Token

log = logging.getLogger(__name__)


class Lease:
    """One held lease; `state` is "ok", "stale", "cancelled" or "timed_out"."""

    def __init__(self, token: Token, timeout: float | None, on_timeout: Callable[[], object] | None) -> None:
        """Start as held; after `timeout` seconds `on_timeout` is called once, on a thread of its own."""
        self.token, self.timeout, self.on_timeout = token, timeout, on_timeout
        self.deadline = None if timeout is None else time.monotonic() + timeout
        self.state = "ok"

    def check(self) -> None:
        """Raise when the node is no longer ours to run.

        Raises:
            LeaseLost: another worker goes on. RunStopped: somebody cancelled the run.
            NodeTimedOut: the node is past its deadline.
        """
        if self.state == "stale":
            raise LeaseLost(
                f"node {self.token.node!r} of run {self.token.run_id} was given to another worker; "
                "what this one still does is refused."
            )
        if self.state == "cancelled":
            raise RunStopped(f"run {self.token.run_id} was cancelled while node {self.token.node!r} ran.")
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise self.timed_out()

    def timed_out(self) -> NodeTimedOut:
        """Return the error of a node that ran too long."""
        return NodeTimedOut(f"node {self.token.node!r} execution timed out after {self.timeout:g} s.")


class Leases:
    """All leases of this process; renewed every third of a lease."""

    def __init__(self, store: Store, lease: float) -> None:
        """`lease` is in seconds."""
        self._store, self._every, self._lease = store, lease / 3, lease
        self._held: dict[Token, Lease] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._pid = 0

    @contextmanager
    def hold(
        self, token: Token, timeout: float | None = None, on_timeout: Callable[[], object] | None = None
    ) -> Iterator[Lease]:
        """Renew a lease for as long as the block runs, or until `timeout` seconds are over."""
        lease = Lease(token, timeout, on_timeout)
        self._start()
        with self._lock:
            self._held[token] = lease
        if timeout is not None:
            self._wake.set()
        try:
            yield lease
        finally:
            with self._lock:
                self._held.pop(token, None)

    def _start(self) -> None:
        if self._pid == os.getpid():
            return
        with self._lock:
            if self._pid != os.getpid():
                self._pid, self._held = os.getpid(), {}
                threading.Thread(target=self._serve, name="runner-leases", daemon=True).start()

    def _serve(self) -> None:
        due = renewed = time.monotonic()
        while True:
            self._wake.wait(max(0.0, self._next(due + self._every) - time.monotonic()))
            self._wake.clear()
            held = self._running()
            if time.monotonic() >= due + self._every:
                due = time.monotonic()
                renewed = self._round(held, renewed) if held else due

    def _next(self, due: float) -> float:
        with self._lock:
            return min(
                [due, *(lease.deadline for lease in self._held.values() if lease.deadline is not None)]
            )

    def _running(self) -> list[Lease]:
        """Give up what is past its deadline, and return the rest."""
        now = time.monotonic()
        with self._lock:
            late = [
                each for each in self._held.values() if each.deadline is not None and each.deadline <= now
            ]
            for lease in late:
                del self._held[lease.token]
            held = list(self._held.values())
        for lease in late:
            lease.state = "timed_out"
            if lease.on_timeout is not None:
                threading.Thread(target=lease.on_timeout, name="runner-timeout", daemon=True).start()
        return held

    def _round(self, held: list[Lease], renewed: float) -> float:
        try:
            words = self._store.renew([lease.token for lease in held])
        except StoreError as error:
            log.warning("lease.renewal.failed: %s Trying again in %.1f s.", error, self._every)
            if time.monotonic() - renewed > self._lease:
                for lease in held:
                    lease.state = "stale"
            return renewed
        for lease, word in zip(held, words, strict=True):
            if word != "ok":
                lease.state = word
        return time.monotonic()
