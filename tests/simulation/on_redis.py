"""The same cluster around the Redis store: the same seed must give the same history there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import redis

from runner.errors import StoreError
from runner.store.addresses import PartitionAddress, partition_addresses
from runner.store.redis import layout
from runner.store.redis.keys import Keys
from runner.store.redis.partitions import PartitionedStore, SharedStore
from runner.store.redis.store import RedisStore
from runner.testing import ManualClock
from tests.simulation.unvalidated import checked
from tests.simulation.watch import Seen
from tests.simulation.world import LEASE, Setting, World

LOOKS = 10
"""Changes between two looks at everything: reading all of a store again takes time."""


def on_redis(
    url: str, partitions: int = 1, *, races: bool = False
) -> Callable[[Setting], World]:
    """Make worlds around an empty Redis store, whose time is the simulated one.

    With `races` others may come in between any two calls of one request.
    """
    server, where = redis.Redis.from_url(url), partition_addresses(url, partitions)

    def make(setting: Setting) -> World:
        server.flushall()
        layout.record(where)
        clock = ManualClock()
        stores = [
            RedisStore(url, partition=place.partition, clock=clock, lease=LEASE, push=False)
            for place in where
        ]
        if races:
            for store in stores:
                store._redis.call = racing(checked(store._redis.call), lambda: world)
        store = stores[0] if partitions == 1 else PartitionedStore(stores, relays=False)
        world = World(
            setting,
            store,
            clock,
            lambda: inside(world, store),
            lambda: timers(server, where),
            lambda: store.open_interrupts(limit=1000),
            looks=LOOKS,
        )
        return world

    return make


def racing(call: Callable[..., Any], world: Callable[[], World]) -> Callable[..., Any]:
    """Let the actor whose request this is stop before each call, and before one that is repeated."""

    def stop_and_call(*arguments: Any, **named: Any) -> Any:
        actor = world().current
        if actor is None or actor.calls is None:
            return call(*arguments, **named)
        actor.calls += 1
        how = actor.stop("within a request" if actor.calls > 1 else "at its first call")
        if how == "twice":  # the client repeats a call whose reply was lost
            call(*arguments, **named)
            how = actor.stop("within a request")
        if how == "cut":
            raise StoreError("a call of a request was cut off.")
        return call(*arguments, **named)

    return stop_and_call


def inside(world: World, store: SharedStore) -> Iterator[tuple[str, Seen]]:
    """Look at every run that was begun, and those inside it."""
    todo = sorted({*world.watch.keys.values(), *world.watch.forks})
    while todo:
        run_id = todo.pop(0)
        snapshot = store.read(run_id)
        if snapshot is not None:
            questions = {interrupt.id: interrupt for interrupt in snapshot.interrupts}
            yield (
                run_id,
                Seen(
                    *(snapshot.record, snapshot.nodes, questions, snapshot.maps),
                    snapshot.tags.get("key", ""),
                ),
            )
        todo += store.children(run_id)


def timers(
    server: redis.Redis, where: Sequence[PartitionAddress]
) -> dict[tuple[str, str, str], float]:
    """Read when what is due."""
    keys = [Keys(partition=place.partition).timers for place in where]
    rows = [row for key in keys for row in server.zrange(key, 0, -1, withscores=True)]
    return {tuple(name.decode().split("|", 2)): due for name, due in rows}
