"""The same cluster around the Redis store: the same seed must give the same history there."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import redis

from runner.store.redis.store import RedisStore
from runner.testing import ManualClock
from tests.simulation.watch import Seen
from tests.simulation.world import LEASE, Setting, World

LOOKS = 10
"""Changes between two looks at everything: reading all of a store again takes time."""

TIMERS = "runner:{p00}:timers"


def on_redis(url: str) -> Callable[[Setting], World]:
    """Make worlds around an empty Redis store, whose time is the simulated one."""
    server = redis.Redis.from_url(url)

    def make(setting: Setting) -> World:
        server.flushall()
        clock = ManualClock()
        store = RedisStore(url, clock=clock, lease=LEASE, push=False)
        world = World(
            setting, store, clock, lambda: inside(world, store), lambda: timers(server), looks=LOOKS
        )
        return world

    return make


def inside(world: World, store: RedisStore) -> Iterator[tuple[str, Seen]]:
    """Look at every run that was begun, and those inside it."""
    todo = sorted(set(world.watch.keys.values()))
    while todo:
        run_id = todo.pop(0)
        snapshot = store.read(run_id)
        if snapshot is not None:
            questions = {interrupt.id: interrupt for interrupt in snapshot.interrupts}
            yield run_id, Seen(snapshot.record, snapshot.nodes, questions, snapshot.maps)
        todo += store.children(run_id)


def timers(server: redis.Redis) -> dict[tuple[str, str, str], int]:
    """Read when what is due."""
    rows = server.zrange(TIMERS, 0, -1, withscores=True)
    return {tuple(name.decode().split("|", 2)): int(due) for name, due in rows}
