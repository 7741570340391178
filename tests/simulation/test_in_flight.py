"""Crowds with few slots: parents that wait for children hold none, so nobody waits for ever (F24)."""

from __future__ import annotations

import random

import pytest

from runner import Graph, GraphBuilder, Status
from runner.limits.limit import Limit
from tests.simulation.plans import Plan
from tests.simulation.virtual import machine
from tests.simulation.world import Setting, World, in_memory

RUNS = 8
DEPTH = 4
LIMIT = Limit("two of us", concurrency=2)


def leaf(ctx):
    """Do the work."""
    return ctx.task


def matryoshka(depth: int) -> Graph:
    """Make a graph in a graph in a graph, each beside a node of a limit."""
    builder = GraphBuilder()
    builder.add_node(matryoshka(depth - 1) if depth else leaf, "inside")
    builder.add_node(leaf, "beside", limits=[LIMIT])
    builder.set_entry_point("inside").set_entry_point("beside")
    return builder.build()


class Crowd:
    """Many runs of nested graphs on workers with few slots."""

    def __init__(self, *slots: int, make=in_memory) -> None:
        skews = tuple((0.0, 1.0) for _ in slots)
        self.world = make(Setting(Plan(("works",)), runs=RUNS, slots=slots, skews=skews))
        self.world.factories = {"plan": lambda: matryoshka(DEPTH)}
        self.world.looks = 0
        self.most = 0

    def begin(self) -> None:
        """Start every run."""
        for request in self.world.requests:
            self.world._send(request)
            self.world.finish(self.world.actors[-1])

    def serve(self, chance: random.Random) -> None:
        """Let whoever has room take any message, and whoever is at work take a step, until nobody can."""
        world = self.world
        while True:
            while world.broker.queue and world.do_deliver(chance.randrange(10_000)):
                self.most = max(self.most, len(world.actors))
            if not world.actors:
                return
            world.resume(chance.choice(world.actors))
            running = [node_name for _, run in world.runs() for node_name in run.nodes.items()]
            limited = sum(
                node.status is Status.RUNNING for name, node in running if name == "beside"
            )
            assert limited <= LIMIT.concurrency

    def ended(self) -> list[bool]:
        """Tell of each run, and of those inside, whether it has completed."""
        return [run.record.status is Status.COMPLETED for _, run in self.world.runs()]


@pytest.mark.full
@pytest.mark.parametrize("slots", [(1,), (1, 1), (2, 3)])
def test_parents_that_wait_for_children_hold_no_slot(slots):
    """One slot is enough for any depth of graphs in graphs; no more is in flight than there are slots."""
    crowd = Crowd(*slots)
    with machine(crowd.world):
        crowd.begin()
        crowd.serve(random.Random(sum(slots)))  # noqa: S311 - repeatable, no secret

        assert crowd.ended() == [True] * RUNS * (DEPTH + 1)
        assert crowd.most == sum(slots)
        assert crowd.world.broker.queue == []


def test_a_parent_that_kept_its_slot_would_stop_everybody():
    """The control: where a parent waits in its slot, a few parents leave no slot for any child."""
    crowd = Crowd(2, 1)
    with machine(crowd.world):
        for process in crowd.world.workers:
            process.engine._execute = in_its_slot(crowd.world, process.engine._execute)
        crowd.begin()
        world = crowd.world
        for turn in range(300):
            world.do_deliver(0)
            if world.actors:
                world.do_work(turn)

        assert not any(crowd.ended())
        assert {actor.point for actor in world.actors} == {"waits in its slot"}
        assert world.broker.queue


def in_its_slot(world: World, run):
    """Wait for the child run where its parent runs, as a node that blocks would."""

    def waiting(*arguments):
        delivery = run(*arguments)
        while delivery.child and not world.store.peek(delivery.child).is_final:
            world.current.stop("waits in its slot")
        return delivery

    return waiting
