"""Leases of this process: one thread renews all of them, and tells a node when its lease is gone.

The thread starts with the first lease, so after a fork each process has its own.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from runner.errors import LeaseLost, RunStopped, StoreError
from runner.ports import Store, Token

log = logging.getLogger(__name__)


class Lease:
    """One held lease; `state` is "ok", "stale" or "cancelled"."""

    def __init__(self, token: Token) -> None:
        """Start as held."""
        self.token = token
        self.state = "ok"

    def check(self) -> None:
        """Raise when the node is no longer ours to run.

        Raises:
            LeaseLost: another worker goes on. RunStopped: somebody cancelled the run.
        """
        if self.state == "stale":
            raise LeaseLost(
                f"node {self.token.node!r} of run {self.token.run_id} was given to another worker; "
                "what this one still does is refused."
            )
        if self.state == "cancelled":
            raise RunStopped(f"run {self.token.run_id} was cancelled while node {self.token.node!r} ran.")


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
    def hold(self, token: Token) -> Iterator[Lease]:
        """Renew a lease for as long as the block runs."""
        lease = Lease(token)
        self._start()
        with self._lock:
            self._held[token] = lease
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
                threading.Thread(target=self._renew, name="runner-leases", daemon=True).start()

    def _renew(self) -> None:
        renewed = time.monotonic()
        while not self._wake.wait(self._every):
            with self._lock:
                held = list(self._held.values())
            if not held:
                renewed = time.monotonic()
                continue
            renewed = self._round(held, renewed)

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
