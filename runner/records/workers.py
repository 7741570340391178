"""A worker as it describes itself to operators; scheduling doesn't use this."""

from __future__ import annotations

from dataclasses import field

from runner.immutable import immutable

EVERY = 10.0
"""Seconds between two signs of life of a worker."""

SILENT = 3 * EVERY
"""Seconds without a sign of life after which a worker counts as gone."""

HANGS = 10.0
"""Seconds past its grace after which a stopping worker hangs; its nodes are back in the queue."""

KEEPER = "keeper"
"""The `pool` of a process that runs no nodes."""


@immutable
class Worker:
    """One worker as it described itself; `graphs` are fingerprints by name.

    `seen` is in ms of the store's clock, and `ahead` is how many ms the worker's clock is ahead of
    it. `stopping` is the seconds since it was asked to stop, or 0; `grace` the seconds that its
    nodes then have. `wants` are the queues of its graphs, `tasks` the queues on which their nodes
    send Celery tasks, each with the name of one, and `queues` the queues it serves. `accepts` are
    the content types of messages that it reads; `visibility` is the broker's visibility timeout in
    seconds, or 0 without one. `executing` counts the nodes that run on it by queue, `longest` is
    for how many seconds the first of them has run. `partitions` is how many the store is set to have,
    or 0 if that isn't known. `rate` is Celery's rate limit of all its nodes together, or "".
    """

    name: str
    pid: int = 0
    pool: str = ""
    slots: int = 0
    busy: int = 0
    partitions: int = 0
    executing: dict[str, int] = field(default_factory=dict)
    longest: float = 0.0
    rate: str = ""
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
        """Return "alive", "stopping", "hangs" (it should have stopped) or "gone" (it is silent)."""
        if not self.alive(now):
            return "gone"
        if not self.stopping:
            return "alive"
        return "hangs" if self.stopping > self.grace + HANGS else "stopping"
