"""A worker of a store, as it describes itself to operators: nothing is scheduled by it."""

from __future__ import annotations

from dataclasses import dataclass, field

EVERY = 10.0
"""Seconds between two signs of life of a worker."""

SILENT = 3 * EVERY
"""Seconds without a sign of life after which a worker counts as gone."""

HANGS = 10.0
"""Seconds after which a worker that does not stop hangs: its nodes have been returned to the queue."""

KEEPER = "keeper"
"""The pool of a process that has none."""


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker as it described itself; `graphs` are fingerprints by name.

    `seen` is in ms of the store's clock, `ahead` how many ms the worker's own clock is before it.
    `stopping` are the seconds since it was asked to stop, or 0; `grace` those that its nodes have then.
    `wants` are the queues of its graphs, `tasks` the Celery tasks that their nodes send, each with its queue,
    and `queues` the ones that it serves. `accepts` are the content types of messages that it reads;
    `visibility` is in seconds, 0 if the broker has no such thing.
    `executing` has how many nodes of each queue run on it, `longest` for how many seconds the first of them.
    """

    name: str
    pid: int = 0
    pool: str = ""
    slots: int = 0
    busy: int = 0
    executing: dict[str, int] = field(default_factory=dict)
    longest: float = 0.0
    queues: list[str] = field(default_factory=list)
    wants: list[str] = field(default_factory=list)
    tasks: dict[str, str] = field(default_factory=dict)
    graphs: dict[str, str] = field(default_factory=dict)
    accepts: list[str] = field(default_factory=list)
    events: bool = True
    lease: float = 0.0
    sweep_interval: float = 0.0
    visibility: float = 0.0
    version: str = ""
    started: int = 0
    seen: int = 0
    ahead: int = 0
    stopping: float = 0.0
    grace: float = 0.0

    @property
    def is_keeper(self) -> bool:
        """Return whether it is a keeper, which runs no nodes."""
        return self.pool == KEEPER

    def alive(self, now: int) -> bool:
        """Return whether it gave a sign of life lately; `now` is in ms of the store's clock."""
        return now - self.seen < SILENT * 1000

    def state_at(self, now: int) -> str:
        """Return "alive", "stopping", "hangs" (it should have stopped by now) or "gone" (it is silent)."""
        if not self.alive(now):
            return "gone"
        if not self.stopping:
            return "alive"
        return "hangs" if self.stopping > self.grace + HANGS else "stopping"
