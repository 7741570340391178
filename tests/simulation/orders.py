"""All orders in which a few actors can take their steps, one after another, each from the start.

A step goes from one request that changes the store to the next. An order is the list of choices made; what is
not chosen yet takes the first of what is there, and each other choice is an order to try later.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hypothesis import settings

from runner import Graph
from tests.simulation.actors import Actor
from tests.simulation.plans import Plan
from tests.simulation.virtual import machine
from tests.simulation.world import STOPS, Setting, World, in_memory

WRITES = frozenset(
    f"before {name}"
    for name in ("claim", "settle", "park", "ask", "start", "answer", "cancel", "retry")
)

EXAMPLES = settings.default.max_examples
MOST = 10_000 if EXAMPLES >= 100 else 5 * EXAMPLES
"""Orders to play: all that there are, or a sample."""

Scene = Callable[[World], list[tuple[str, Callable[[], Actor]]]]
"""Lists who may come in now, besides those at work: each has a name and comes once."""


def on_stage(graph: Callable[[], Graph], make: Callable[[Setting], World] = in_memory) -> World:
    """Make a world with one worker that has room for everybody."""
    world = make(Setting(Plan(("works",)), slots=(99,), skews=((0.0, 1.0),)))
    world.factories = {"plan": graph}
    return world


@dataclass
class Order:
    """One order: the choices that were given, and those that were there."""

    wanted: list[int]
    taken: list[int] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)

    def choose(self, width: int) -> int:
        """Take the next choice."""
        place = len(self.taken)
        chosen = self.wanted[place] if place < len(self.wanted) else 0
        self.taken.append(chosen)
        self.widths.append(width)
        return chosen

    def others(self) -> list[list[int]]:
        """List the orders that differ from this one first where it was free."""
        free = range(len(self.wanted), len(self.taken))
        return [
            [*self.taken[:place], other]
            for place in free
            for other in range(1, self.widths[place])
        ]


def orders(
    graph: Callable[[], Graph],
    scene: Scene,
    *,
    doubled: str = "",
    make: Callable[[Setting], World] = in_memory,
) -> Iterator[World]:
    """Play every order to its end, or a sample; the messages of the nodes `doubled` come twice."""
    todo: list[list[int]] = [[]]
    chance = random.Random(1)  # noqa: S311 - repeatable, no secret
    for _ in range(MOST):
        if not todo:
            return
        order = Order(todo.pop(chance.randrange(len(todo))))
        world = on_stage(graph, make)
        with machine(world):
            _play(world, order, scene, doubled)
            world.end()
            yield world
        todo += order.others()
    assert EXAMPLES < 100, "there are more orders"


def _play(world: World, order: Order, scene: Scene, doubled: str) -> None:
    for request in world.requests:  # the run begins before anything else
        world._send(request)
        world.finish(world.actors[-1])
    came: set[str] = set()
    for _ in range(STOPS):
        while world.broker.queue:
            bell = world.broker.queue.pop(0)
            for _ in range(1 + (bell.node in doubled)):
                _on(world, world._take(bell, 0))
        for name, come in scene(world):
            if name not in came:
                came.add(name)
                _on(world, come())
        if not world.actors:
            return
        _on(world, world.actors[order.choose(len(world.actors))])
    raise AssertionError("an order has no end")


def _on(world: World, actor: Actor | None) -> None:
    """Go on to behind a request that changes the store, and up to the next one."""
    for _ in range(STOPS):
        if actor is None or actor.done:
            return
        world.resume(actor)
        world.look()
        if actor.point in WRITES:
            return
