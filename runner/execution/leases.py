"""Leases of this process: one thread renews all of them, and stops nodes whose lease is gone.

The same thread watches the nodes' timeouts. Past its deadline a node's code gets an error at its next
check, and async code at once; the node itself is settled by a callback, whatever its code does.
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

from runner import async_loop
from runner.errors import LeaseLost, NodeTimedOut, RunStopped
from runner.store.interface import Store, Token

log = logging.getLogger(__name__)

LINGER = 1.0
"""Seconds between two checks whether the thread is still needed."""


class Lease:
    """One held lease; `state` is "ok", "stale", "cancelled" or "timed_out"."""

    def __init__(
        self, token: Token, timeout: float | None = None, on_timeout: Callable[[Lease], object] | None = None
    ) -> None:
        """Start as held; after `timeout` seconds `on_timeout` is called once, on a thread of its own."""
        self.token, self.timeout, self.on_timeout = token, timeout, on_timeout
        self.stop = async_loop.Stop()
        self.renewed = time.monotonic()
        self.deadline = None if timeout is None else self.renewed + timeout
        self.state = "ok"

    def check(self) -> None:
        """Raise when this worker may no longer run the node.

        Raises:
            LeaseLost: another worker has the node. RunStopped: the run was cancelled.
            NodeTimedOut: the node is past its deadline.
        """
        if self.state == "stale":
            raise self.lost()
        if self.state == "cancelled":
            raise RunStopped(f"run {self.token.run_id} was cancelled while node {self.token.node!r} ran.")
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise self.timed_out()

    def expire(self) -> None:
        """Call `on_timeout`, then end the node's async code, which may be waiting for ever."""
        if self.on_timeout is not None:
            self.on_timeout(self)
        self.stop(self.timed_out())

    def lose(self) -> None:
        """Make the node's next check raise LeaseLost, and raise it in async code at once."""
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
            os.register_at_fork(after_in_child=lambda: (method := forget()) and method())

    def _forget(self) -> None:
        """Start empty; after a fork, too: leases and lock of the parent are not this process's."""
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
            with async_loop.stoppable(lease.stop):
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
        """Stop renewing a lease, and stop its node."""
        with self._lock:
            lease = self._held.pop(token, None)
        if lease is not None:
            lease.lose()

    def look(self) -> None:
        """Renew everything now, so that the nodes of a run that was just cancelled stop."""
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
        """Drop the leases past their deadline, and return the others; None ends the thread."""
        now = time.monotonic()
        with self._lock:
            held = list(self._held.values())
            overdue = [one for one in held if one.deadline is not None and one.deadline <= now]
            for lease in overdue:
                del self._held[lease.token]
            if not held:
                self._serving = False
                return None
        for lease in overdue:
            lease.state = "timed_out"
            threading.Thread(target=lease.expire, name="runner-timeout", daemon=True).start()
        return [lease for lease in held if lease not in overdue]

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
