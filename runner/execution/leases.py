"""Leases of this process: one thread renews all of them, and marks refused ones.

A node whose lease is lost, or whose run was cancelled, gets an error at its next check; until then
even async code goes on. The same thread watches the nodes' timeouts. Past its deadline a node's
code gets an error at its next check, and async code at once; a callback settles the node, whatever
its code does. The thread starts with a lease and ends when none is held, so after a fork each
process has its own. Two more objects exist once per process: the quarantine of nodes that may have
killed their workers, and the timer of sweeps.
"""

from __future__ import annotations

import heapq
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Callable

from runner import async_loop
from runner.errors import LeaseLost, NodeTimedOut, NotFoundError, RunnerError, RunStopped
from runner.scheduler import CRASH_BUDGET
from runner.store.interface import Claim, Reply, Store, Token
from runner.store.requests import ClaimVisit

log = logging.getLogger(__name__)

LINGER = 1.0
"""Seconds between two checks whether the thread is still needed."""


def after_fork(method: Callable[[], object]) -> None:
    """Make each forked child call an object's method, as long as the object lives."""
    if hasattr(os, "register_at_fork"):
        reference = weakref.WeakMethod(method)
        os.register_at_fork(after_in_child=lambda: (bound := reference()) and bound())


class Lease:
    """One held lease; `state` is "ok", "stale" or "cancelled".

    `has_expired` says that the node's timeout is over; `has_saved` that the node has stored
    something new since its claim.
    """

    def __init__(
        self,
        token: Token,
        timeout: float | None = None,
        on_timeout: Callable[[Lease], object] | None = None,
        *,
        renew: Callable[[], object],
    ) -> None:
        """Start as held; after `timeout` seconds `on_timeout` is called once, on a separate thread."""
        self.token = token
        self.timeout = timeout
        self.on_timeout = on_timeout
        self.renew = renew
        self.stop = async_loop.Stop()
        self.renewed = time.monotonic()
        self.deadline = None if timeout is None else self.renewed + timeout
        self.state = "ok"
        self.has_saved = self.has_expired = False

    def check(self) -> None:
        """Raise if this worker may no longer run the node.

        Raises:
            LeaseLost: another worker has the node. RunStopped: the run was cancelled.
            NodeTimedOut: the node is past its deadline.
        """
        if self.state == "stale":
            raise self.lost()
        if self.state == "cancelled":
            raise RunStopped(
                f"run {self.token.run_id} was cancelled while node {self.token.node!r} ran."
            )
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise self.timed_out()

    def expire(self) -> None:
        """Call `on_timeout`, then end the node's async code, which may wait forever."""
        self.has_expired = True
        if self.on_timeout is not None:
            self.on_timeout(self)
        self.stop(self.timed_out())

    def lose(self) -> None:
        """Stop a node that this process returns: its next check raises LeaseLost, async code at once."""
        self.state = "stale"
        self.stop(self.lost())

    def lost(self) -> LeaseLost:
        return LeaseLost(
            f"this worker no longer holds the lease of node {self.token.node!r} of run {self.token.run_id}; "
            "its further writes are refused."
        )

    def timed_out(self) -> NodeTimedOut:
        return NodeTimedOut(
            f"node {self.token.node!r} execution timed out after {self.timeout:g} s."
        )


class Leases:
    """All leases of this process; renewed every third of a lease."""

    def __init__(self, store: Store, lease: float) -> None:
        """Use leases of `lease` seconds; an infinite lease is never renewed."""
        self._store = store
        self._every = lease / 3
        self._lease = lease
        self._forget()
        after_fork(self._forget)

    def _forget(self) -> None:
        """Start empty, even after a fork: the parent's leases and lock don't belong to this process."""
        self._held: dict[Token, Lease] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._serving = False

    def hold(
        self,
        token: Token,
        timeout: float | None = None,
        on_timeout: Callable[[Lease], object] | None = None,
    ) -> Lease:
        """Renew a lease from now on, until `end` or until `timeout` seconds are over."""
        lease = Lease(token, timeout, on_timeout, renew=lambda: self._round([lease]))
        with self._lock:
            if not self._serving and (timeout is not None or self._lease < math.inf):
                self._serving = True
                threading.Thread(target=self._serve, name="runner-leases", daemon=True).start()
            self._held[token] = lease
        if timeout is not None:
            self._wake.set()
        return lease

    def end(self, token: Token) -> Lease | None:
        """Stop renewing a lease; return it if it was held."""
        with self._lock:
            return self._held.pop(token, None)

    @property
    def any_held(self) -> bool:
        """Return whether a node of this process runs and is not past its deadline."""
        with self._lock:
            return bool(self._held)

    def held(self) -> list[Token]:
        with self._lock:
            return list(self._held)

    def drop(self, token: Token) -> Lease | None:
        """Stop renewing a lease, and stop its node."""
        lease = self.end(token)
        if lease is not None:
            lease.lose()
        return lease

    def look(self) -> None:
        """Renew everything now, so that the nodes of a just cancelled run stop."""
        with self._lock:
            leases = list(self._held.values())
        if leases:
            self._round(leases)

    def _serve(self) -> None:
        due = time.monotonic() + self._every
        while True:
            self._wake.wait(max(0.0, self._next(due) - time.monotonic()))
            self._wake.clear()
            leases = self._running()
            if leases is None:
                return
            if time.monotonic() >= due:
                due = time.monotonic() + self._every
                self._round(leases)

    def _next(self, due: float) -> float:
        with self._lock:
            ends = [
                lease.deadline for lease in self._held.values() if lease.deadline is not None
            ]
            return min([due, time.monotonic() + LINGER, *ends])

    def _running(self) -> list[Lease] | None:
        """Drop the leases past their deadline, and return the others; None ends the thread."""
        now = time.monotonic()
        with self._lock:
            leases = list(self._held.values())
            overdue = [
                lease
                for lease in leases
                if lease.deadline is not None and lease.deadline <= now
            ]
            for lease in overdue:
                del self._held[lease.token]
            if not leases:
                self._serving = False
                return None
        for lease in overdue:
            threading.Thread(target=lease.expire, name="runner-timeout", daemon=True).start()
        return [lease for lease in leases if lease not in overdue]

    def _round(self, leases: list[Lease]) -> None:
        began = time.monotonic()
        try:
            statuses = self._store.renew([lease.token for lease in leases])
        except Exception as error:  # noqa: BLE001 - without this thread every node of the process is lost
            log.warning("lease.renewal.failed: %s Trying again in %.1f s.", error, self._every)
            for lease in leases:
                if time.monotonic() - lease.renewed > self._lease:
                    lease.state = "stale"
            return
        for lease, status in zip(leases, statuses, strict=True):
            if status == "ok":
                lease.renewed = began
            elif status:
                lease.state = status
            elif began - lease.renewed > self._lease:
                lease.state = "stale"


# Quarantine: a process runs only one node at a time that may have killed its workers.
#
# Whatever kills a process stops everything that runs there. In a worker with threads, nodes then
# lose their leases together, and nothing shows which one is to blame. So a node whose next lost
# lease would fail it runs without other such nodes: in the end only the killer is lost. If a
# process runs one node at a time anyway, this changes nothing.


class Quarantine:
    """Claims visits, one in quarantine at a time. Thread-safe, and usable after a fork."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._forget()
        after_fork(self._forget)

    def _forget(self) -> None:
        self._running: Token | None = None
        self._lock = threading.Lock()

    def claim(
        self, run_id: str, node: str, visit: int, attempt: int, nonce: str
    ) -> Claim | Reply:
        """Claim a visit as the store does; "crowded" if another node in quarantine runs here.

        Then nothing was written, and its doorbell rings again later.
        """
        if attempt < CRASH_BUDGET:  # it can't have lost that many leases yet
            return self._store.do(ClaimVisit(run_id, node, visit, attempt, nonce))
        with self._lock:
            if self._running is not None and self._is_last(run_id, node):
                return Reply("crowded")
            claim = self._store.do(ClaimVisit(run_id, node, visit, attempt, nonce))
            if isinstance(claim, Claim) and claim.record.crashes + 1 >= CRASH_BUDGET:
                self._running = claim.token
            return claim

    def release(self, token: Token) -> None:
        """Allow the next node in quarantine to run, if this node was in quarantine."""
        with self._lock:
            if self._running is token:
                self._running = None

    def _is_last(self, run_id: str, node: str) -> bool:
        try:
            ((record, *_),) = self._store.fetch(run_id, [node])
        except NotFoundError:
            return False
        return record.crashes + 1 >= CRASH_BUDGET


# A sweep at a given time: for nodes that a retry or a rate delays by less than the sweep interval.
#
# One thread waits for the next time and ends when there is none. A time that is lost with its
# process only causes a delay: any worker's next sweep handles the timer.


class SweepTimer:
    """Calls `sweep` at given times, on a separate thread."""

    def __init__(self, sweep: Callable[[], object]) -> None:
        """Call `sweep` on the timer's thread; its errors are logged."""
        self._sweep = sweep
        self._forget()
        after_fork(self._forget)

    def _forget(self) -> None:
        self._times: list[float] = []
        self._changed = threading.Condition()
        self._serving = False

    def sweep_in(self, seconds: float) -> None:
        """Sweep after so many seconds."""
        with self._changed:
            heapq.heappush(self._times, time.monotonic() + seconds)
            if not self._serving:
                self._serving = True
                threading.Thread(
                    target=self._serve, name="runner-sweep-timer", daemon=True
                ).start()
            self._changed.notify()

    def _serve(self) -> None:
        while self._wait():
            try:
                self._sweep()
            except RunnerError as error:
                log.info("sweep.missed: %s The next sweep handles due timers.", error)
            except Exception:
                log.exception(
                    "sweep.failed: the next sweep handles due timers; please report this."
                )

    def _wait(self) -> bool:
        """Wait for the next time and remove all past ones; return False if none are left."""
        with self._changed:
            while self._times and self._times[0] > time.monotonic():
                self._changed.wait(self._times[0] - time.monotonic())
            self._serving = bool(self._times)
            while self._times and self._times[0] <= time.monotonic():
                heapq.heappop(self._times)
            return self._serving
