"""Leases of this process: one thread renews all of them, and tells a node when its lease is gone.

The same thread watches the nodes' timeouts. The code of a node that is past its deadline is told at
its next check, and async code at once; the node itself is given up, whatever its code does, by a callback.
The thread starts with a lease and ends when none is held, so after a fork each process has its own.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from runner import loops
from runner.errors import LeaseLost, NodeTimedOut, RunStopped
from runner.ports import Store, Token

log = logging.getLogger(__name__)

LINGER = 1.0
"""Seconds between two looks whether the thread is still needed."""


class Lease:
    """One held lease; `state` is "ok", "stale", "cancelled" or "timed_out"."""

    def __init__(
        self, token: Token, timeout: float | None = None, on_timeout: Callable[[Lease], object] | None = None
    ) -> None:
        """Start as held; after `timeout` seconds `on_timeout` is called once, on a thread of its own."""
        self.token, self.timeout, self.on_timeout = token, timeout, on_timeout
        self.stop = loops.Stop()
        self.renewed = time.monotonic()
        self.deadline = None if timeout is None else self.renewed + timeout
        self.state = "ok"

    def check(self) -> None:
        """Raise when the node is no longer ours to run.

        Raises:
            LeaseLost: another worker goes on. RunStopped: somebody cancelled the run.
            NodeTimedOut: the node is past its deadline.
        """
        if self.state == "stale":
            raise self.lost()
        if self.state == "cancelled":
            raise RunStopped(f"run {self.token.run_id} was cancelled while node {self.token.node!r} ran.")
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise self.timed_out()

    def expire(self) -> None:
        """Give the node up, then end its async code, which may wait for something that never comes."""
        if self.on_timeout is not None:
            self.on_timeout(self)
        self.stop(self.timed_out())

    def lose(self) -> None:
        """Let the node learn that it is not ours any more: at its next check; async code at once."""
        self.state = "stale"
        self.stop(self.lost())

    def lost(self) -> LeaseLost:
        """Return the error of a node that another worker runs."""
        return LeaseLost(
            f"node {self.token.node!r} of run {self.token.run_id} was given to another worker; "
            "what this one still does is refused."
        )

    def timed_out(self) -> NodeTimedOut:
        """Return the error of a node that ran too long."""
        return NodeTimedOut(f"node {self.token.node!r} execution timed out after {self.timeout:g} s.")


class Leases:
    """All leases of this process; renewed every third of a lease."""

    def __init__(self, store: Store, lease: float) -> None:
        """`lease` is in seconds; one without end is never renewed."""
        self._store, self._every, self._lease = store, lease / 3, lease
        self._forget()
        if hasattr(os, "register_at_fork"):
            forget = weakref.WeakMethod(self._forget)
            os.register_at_fork(after_in_child=lambda: (found := forget()) and found())

    def _forget(self) -> None:
        """Begin anew; after a fork too: what the parent holds is not ours, nor was its lock surely free."""
        self._held: dict[Token, Lease] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._serving = False

    @contextmanager
    def hold(
        self, token: Token, timeout: float | None = None, on_timeout: Callable[[Lease], object] | None = None
    ) -> Iterator[Lease]:
        """Renew a lease for as long as the block runs, or until `timeout` seconds are over."""
        lease = Lease(token, timeout, on_timeout)
        with self._lock:
            if timeout is not None or self._lease < math.inf:
                self._begin()
            self._held[token] = lease
        if timeout is not None:
            self._wake.set()
        try:
            with loops.stoppable(lease.stop):
                yield lease
        finally:
            with self._lock:
                self._held.pop(token, None)

    @property
    def any_held(self) -> bool:
        """Whether a node of this process runs and is not past its deadline."""
        with self._lock:
            return bool(self._held)

    def held(self) -> list[Token]:
        """List what is held."""
        with self._lock:
            return list(self._held)

    def drop(self, token: Token) -> None:
        """Renew a lease no longer, and let its node learn so."""
        with self._lock:
            lease = self._held.pop(token, None)
        if lease is not None:
            lease.lose()

    def look(self) -> None:
        """Renew everything now, so that the nodes of a run that was just cancelled learn of it."""
        with self._lock:
            held = list(self._held.values())
        if held:
            self._round(held)

    def _begin(self) -> None:
        """Start the thread, with the lock held, unless it runs."""
        if self._serving:
            return
        self._serving = True
        threading.Thread(target=self._serve, name="runner-leases", daemon=True).start()

    def _serve(self) -> None:
        due = time.monotonic() + self._every
        while True:
            self._wake.wait(max(0.0, self._next(due) - time.monotonic()))
            self._wake.clear()
            held = self._running()
            if held is None:
                return
            if time.monotonic() >= due:
                due = time.monotonic() + self._every
                self._round(held)

    def _next(self, due: float) -> float:
        with self._lock:
            ends = [lease.deadline for lease in self._held.values() if lease.deadline is not None]
            return min([due, time.monotonic() + LINGER, *ends])

    def _running(self) -> list[Lease] | None:
        """Give up what is past its deadline, and return the rest; None ends the thread."""
        now = time.monotonic()
        with self._lock:
            held = list(self._held.values())
            late = [each for each in held if each.deadline is not None and each.deadline <= now]
            for lease in late:
                del self._held[lease.token]
            if not held:
                self._serving = False
                return None
        for lease in late:
            lease.state = "timed_out"
            threading.Thread(target=lease.expire, name="runner-timeout", daemon=True).start()
        return [lease for lease in held if lease not in late]

    def _round(self, held: list[Lease]) -> None:
        began = time.monotonic()
        try:
            words = self._store.renew([lease.token for lease in held])
        except Exception as error:  # noqa: BLE001 - without this thread every node of the process is lost
            log.warning("lease.renewal.failed: %s Trying again in %.1f s.", error, self._every)
            for lease in held:
                if time.monotonic() - lease.renewed > self._lease:
                    lease.state = "stale"
            return
        for lease, word in zip(held, words, strict=True):
            if word == "ok":
                lease.renewed = began
            else:
                lease.state = word
