from __future__ import annotations

import threading

import pytest

from runner import GraphBuilder, Status
from runner.definition.registry import Registry
from runner.errors import LeaseLost, StoreError
from runner.execution.engine import Engine
from runner.store.memory.store import MemoryStore
from runner.store.requests import LeaveVisit
from tests.waiting import wait_until


class Bells:
    """Keeps what was rung."""

    def __init__(self) -> None:
        self.rung: list[str] = []

    def ring(self, doorbells):
        """Note each."""
        self.rung += [bell.task_id for bell in doorbells]

    def call(self, task, kwargs, task_id):
        """Nobody is called here."""
        raise NotImplementedError


class Away(MemoryStore):
    """A store that can't be reached when a node is given up."""

    def do(self, request):
        """Be away for a node that is given up."""
        if isinstance(request, LeaveVisit):
            raise StoreError("the store is away.")
        return super().do(request)


class Site:
    """An engine with one graph of one node."""

    def __init__(self, node, store: MemoryStore | None = None) -> None:
        self.store, self.bells, registry = store or MemoryStore(), Bells(), Registry()
        builder = GraphBuilder()
        builder.add_node(node, "a")
        registry.add("g", builder.build)
        self.engine = Engine(self.store, self.bells, registry)
        self.run_id = self.engine.start("g", "go")
        self.said: list[str] = []

    def deliver(self) -> None:
        self.said.append(self.engine.deliver(self.run_id, "a", 1, 1).word)

    def kinds(self) -> list[str]:
        return [event.kind for event in self.store.events(self.run_id)]


class Gate:
    """A node that runs until it is let go, and looks whether it is still its own."""

    def __init__(self, *, looks: bool) -> None:
        self.looks = looks
        self.runs, self.open = threading.Event(), threading.Event()
        self.lost = False

    def __call__(self, ctx):
        """Wait; a second start returns at once."""
        if not self.runs.is_set():
            self.runs.set()
            self.open.wait(60)
            try:
                ctx.check()
            except LeaseLost:
                self.lost = True
                if self.looks:
                    raise
        return "done"


@pytest.mark.parametrize("looks", [True, False])
def test_what_a_process_gives_up_begins_elsewhere_at_once(looks):
    """After `leave` the node is rung for; its old code learns so, and what that returns is refused."""
    gate = Gate(looks=looks)
    site = Site(gate)
    thread = threading.Thread(target=site.deliver)
    thread.start()
    assert gate.runs.wait(60)

    (given,) = site.engine.leave()

    assert (given.run_id, given.node) == (site.run_id, "a")
    assert site.bells.rung == [f"{site.run_id}.a.1.1"] * 2
    site.deliver()
    gate.open.set()
    thread.join(60)
    assert site.said == ["settled", "stale"]
    assert gate.lost
    assert site.kinds().count("node.completed") == 1
    assert site.store.peek(site.run_id).status is Status.COMPLETED


def test_a_process_without_nodes_gives_up_nothing():
    """Leaving twice, or when nothing runs, does nothing."""
    site = Site(lambda ctx: "done")
    site.deliver()

    assert site.engine.leave() == []
    assert site.said == ["settled"]


def test_where_the_store_is_away_a_lease_is_not_renewed_any_more():
    """A node that can't be given up is left to its lease: this process holds it no longer."""
    gate = Gate(looks=True)
    site = Site(gate, Away())
    thread = threading.Thread(target=site.deliver)
    thread.start()
    assert gate.runs.wait(60)

    assert site.engine.leave() == []

    assert site.engine.running() == []
    gate.open.set()
    thread.join(60)
    assert site.said == ["stale"]


@pytest.mark.parametrize(("told", "kind"), [(True, "node.left"), (False, "node.started")])
def test_only_a_signal_gives_up_a_node_that_exits(told, kind):
    """A SystemExit that a signal raised gives the node up; one of its own code counts as a lost worker."""

    def leaves(_ctx):
        raise SystemExit(1)

    site = Site(leaves)
    site.engine.is_stopping = lambda: told

    with pytest.raises(SystemExit):
        site.deliver()

    wait_until(lambda: not site.engine.running(), "nothing is held")
    assert site.kinds()[-1] == kind


@pytest.mark.parametrize(("progress", "releases"), [(False, [1, 2, 3]), (True, [0, 0, 0])])
def test_a_release_counts_unless_the_node_has_stored_something_new(progress, releases):
    """A node that each worker releases is counted; with a new step in each of them it is not."""
    starts: list[str] = []

    def slow(ctx):
        starts.append(ctx.once(f"step {len(starts) if progress else 0}", lambda: "done"))
        site.engine.leave()

    site, counted = Site(slow), []
    site.deliver()  # the first has stored something in any case
    for _ in releases:
        site.deliver()
        counted.append(site.store.read(site.run_id).nodes["a"].releases)

    assert counted == releases
