"""What an engine takes from the machine, made virtual: its clock, its sleep, its entropy.

All that is left of chance is the seed, so one seed is one history.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from runner.errors import StoreError
from runner.execution import engine, ids, leases
from runner.store import requests
from runner.store.interface import Doorbell


class Entropy:
    """Names that are new and the same in every run of a seed."""

    def __init__(self) -> None:
        self._count = 0

    def nonce(self) -> str:
        """Give a text that was not given before."""
        self._count += 1
        return f"nonce{self._count}"

    def uuid7(self) -> SimpleNamespace:
        """Give a UUID that sorts behind all before it."""
        self._count += 1
        return SimpleNamespace(bytes=self._count.to_bytes(16, "big"))

    def time_ns(self) -> int:
        """Give a time after all before it, for the ids of runs that are started with a key."""
        self._count += 1
        return self._count * 1_000_000


class WrongClock:
    """The `time` module of whichever process runs now."""

    def __init__(self, world: Any) -> None:
        self._world = world

    def monotonic(self) -> float:
        """Read the clock of the process at work."""
        actor = self._world.current
        return actor.process.clock() if actor else self._world.clock.now / 1000

    def sleep(self, seconds: float) -> None:
        """Give way: somebody else may go on meanwhile."""
        if self._world.current:
            self._world.current.stop(f"sleeps {seconds:g} s")


class Lock:
    """A lock between the actors of a process: who finds it taken gives way."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._taken = False
        self._holder: Any = None

    def __enter__(self) -> None:
        actor = self._world.current
        while self._taken and actor is not None:
            actor.blocked_by = self._holder
            actor.stop("waits for a lock")
        self._taken, self._holder = True, actor
        if actor is not None:
            actor.blocked_by = None

    def __exit__(self, *error: object) -> None:
        self._taken, self._holder = False, None


@contextlib.contextmanager
def machine(world: Any) -> Iterator[None]:
    """Let a world begin, on a virtual machine that is there inside the block."""
    entropy, clock = Entropy(), WrongClock(world)
    locks = SimpleNamespace(**{**vars(threading), "Lock": lambda: Lock(world)})
    places = (
        (leases, "threading", locks),
        (engine, "time", clock),
        (leases, "time", clock),
        (requests, "_nonces", (os.getpid(), "", iter(entropy.nonce, ""))),
        (ids, "uuid_utils", entropy),
        (ids, "time", entropy),
    )
    real = [(module, name, getattr(module, name)) for module, name, _ in places]
    try:
        for module, name, virtual in places:
            setattr(module, name, virtual)
        world.begin()
        yield
    finally:
        world.closed = True
        for module, name, thing in real:
            setattr(module, name, thing)


class Broker:
    """The queue between processes. It may lose, double and hold back what it is given."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self.queue: list[Doorbell] = []
        self.sent: list[Doorbell] = []
        self.calls: list[tuple[str, str]] = []

    def ring(self, doorbells: list[Doorbell]) -> None:
        """Publish; an actor stops before it, and may find the broker gone.

        In which order a store rings for several nodes at once is its own choice.
        """
        actor = self._world.current
        if actor is not None and actor.stop("before publish") == "cut":
            raise StoreError("the broker can't be reached.")
        doorbells = sorted(doorbells, key=lambda bell: (bell.run_id, bell.node, bell.visit))
        self.queue += doorbells
        self.sent += doorbells

    def call(self, task: str, kwargs: dict[str, Any], task_id: str) -> bool:
        """Take a task that is called at the end of a run."""
        self.calls.append((task_id, kwargs["status"]))
        return True
