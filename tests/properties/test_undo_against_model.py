"""Whatever happens to a run with undos, both stores do what a model of a hundred lines says."""

from __future__ import annotations

import itertools

import hypothesis
import pytest
import redis
from hypothesis import strategies as st

from runner.definition.model import Definition, EdgeSpec, FailurePolicy, NodeSpec
from runner.definition.topology import topology
from runner.records.run import Status
from runner.scheduler import lifecycle
from runner.store.interface import Settlement
from runner.store.memory.store import MemoryStore
from runner.store.redis.store import RedisStore
from runner.store.requests import CancelRun, LeaveVisit, ParkVisit, SettleVisit
from runner.testing import ManualClock
from tests.contract.store import ManualWorker
from tests.contract.store.manual_worker import failure
from tests.properties.undo_model import UNDO, Saga

EXAMPLES = hypothesis.settings.default.max_examples
LEASE = 30
MOST_LOSSES = 3
"""Of a worker; a node that loses more of them in a row is given up."""

SHAPES = [
    {"a": "", "b": "a", "c": "b", "d": "c"},
    {"a": "", "b": "", "c": "ab", "d": "c"},
    {"a": "", "b": "a", "c": "a", "d": "bc"},
    {"a": "", "b": "", "c": "", "d": "a"},
]
ACTIONS = {
    "ready": ["claim"] * 4,
    "running": ["complete", "complete", "complete", "fail", "by hand", "park", "leave", "lose"],
    "waiting": ["answer"],
}


class Played:
    """One run in a store, beside the model of it."""

    def __init__(self, store, clock, before, undoable, *, fail_fast):
        self.worker = ManualWorker(store, clock)
        self.store, self.losses, self.begun = store, 0, []
        self.model = Saga(before, undoable, fail_fast=fail_fast)
        names = [*before, *(UNDO + node for node in undoable)]
        graph = Definition(
            "g",
            {name: NodeSpec(name, None, "function") for name in names},
            tuple(EdgeSpec(source, node) for node in before for source in before[node]),
            tuple(node for node, sources in before.items() if not sources),
            FailurePolicy.FAIL_FAST if fail_fast else FailurePolicy.CONTINUE,
        )
        self.run_id = self.worker.start(topology(graph))
        self.claims, self.questions, self.numbers = {}, {}, itertools.count()

    def choices(self):
        """List what may happen now, as (action, node)."""
        states = self.model.states.items()
        return [(action, node) for node, state in states for action in ACTIONS.get(state, ())]

    def act(self, action, node=""):
        """Do one thing to the store and to the model."""
        token = self.claims[node].token if node in self.claims else None
        match action:
            case "claim":
                self.claim(node)
            case "complete" | "by hand" | "fail":
                self.end(node, action)
            case "park":
                self.questions[node] = self.worker.question(
                    token, f"question {next(self.numbers)}"
                )
                self.store.do(ParkVisit(token, [self.questions[node]], None))
                self.model.park(node)
            case "answer":
                assert self.worker.answer(self.questions.pop(node)) == ["accepted"]
                self.model.answer(node)
            case "leave":
                self.store.do(LeaveVisit(token))
                self.model.give_back(node)
            case "lose" if self.losses < MOST_LOSSES:
                self.losses += 1
                self.worker.sweep(after=LEASE + 1)
                for name in [name for name, at in self.model.states.items() if at == "running"]:
                    self.model.give_back(name)
            case "cancel":
                word = self.store.do(CancelRun(self.run_id, "enough")).word
                assert word == self.model.cancel()

    def claim(self, node):
        attempt = self.worker.read(self.run_id).nodes[node].attempt
        claim = self.claims[node] = self.worker.claim(self.run_id, node, 1, attempt)
        if node.startswith(UNDO):
            undone = node.removeprefix(UNDO)
            assert claim.inputs == [(undone, 1, f"did {undone}")]
            self.begun += [undone] * (undone not in self.begun)
        self.model.claim(node)

    def end(self, node, how):
        """Settle a visit; the network doubles the request, which changes nothing."""
        entry = failure() if how == "fail" else {"v": 1}
        if how == "by hand":
            entry["skipped"] = "ana"
        status = Status.FAILED if how == "fail" else Status.COMPLETED
        bits = "1" * sum(node in sources for sources in self.model.before.values())
        edges = "" if how == "fail" else bits
        settlement = Settlement(status, edges, f"did {node}", entry)
        request = SettleVisit(self.claims[node].token, settlement, self.worker.nonce())
        assert self.store.do(request).word == self.store.do(request).word == "settled"
        if how == "fail":
            self.model.fail(node)
        else:
            self.model.complete(node, by_hand=how == "by hand")

    def check(self):
        """Compare where run and nodes stand."""
        snapshot = self.worker.read(self.run_id)
        assert snapshot.record.status == self.model.status
        states = {name: str(record.status) for name, record in snapshot.nodes.items()}
        pending = {name: at for name, at in states.items() if at != "pending"}
        assert pending == {
            name: at for name, at in self.model.states.items() if at != "pending"
        }

    def finish(self):
        """Bring all to its end, and compare the order of the undos with that of the nodes."""
        while choices := self.choices():
            self.act(*choices[0])
            self.check()
        order = [
            node for node in self.worker.read(self.run_id).order if node in self.model.undoable
        ]
        by_hand = {
            node
            for (node, _), entry in self.worker.read(self.run_id).entries.items()
            if "skipped" in entry
        }
        done = [node for node in reversed(order) if node not in by_hand]
        assert self.begun == (done if self.model.status != "completed" else [])


@st.composite
def stories(draw):
    """Draw a graph, which of its nodes have undos, and what happens."""
    before = {node: list(names) for node, names in draw(st.sampled_from(SHAPES)).items()}
    undoable = draw(st.sets(st.sampled_from("abcd"), min_size=1))
    return (
        before,
        undoable,
        draw(st.booleans()),
        draw(st.lists(st.integers(0, 59), max_size=40)),
    )


def play(store, clock, story):
    before, undoable, fail_fast, steps = story
    played = Played(store, clock, before, undoable, fail_fast=fail_fast)
    for step in steps:
        choices = played.choices()
        if not choices or step >= 57:
            played.act("cancel")
        else:
            played.act(*choices[step % len(choices)])
        played.check()
    played.finish()


def in_memory(story):
    clock = ManualClock()
    play(MemoryStore(clock=clock, lease=LEASE), clock, story)


def test_memory_undoes_what_the_model_says():
    """Failures, cancels, questions and lost workers, at any time, and in the undos, too."""
    hypothesis.settings(max_examples=EXAMPLES, deadline=None)(
        hypothesis.given(stories())(in_memory)
    )()


@pytest.mark.full
def test_redis_undoes_what_the_model_says(store_server):
    """So does a real Redis, whose scripts take the quick way where they can."""

    def in_redis(story):
        clock = ManualClock()
        with redis.Redis.from_url(store_server.url) as server:
            server.flushall()
        store = RedisStore(store_server.url, clock=clock, lease=LEASE, push=False)
        try:
            play(store, clock, story)
        finally:
            store.close()

    hypothesis.settings(max_examples=EXAMPLES // 3, deadline=None)(
        hypothesis.given(stories())(in_redis)
    )()


@pytest.mark.full
@pytest.mark.parametrize("fault", ["order", "stop"])
def test_the_model_finds_a_fault(monkeypatch, fault):
    """Control: undos in another order, or cancelled with the run that stops, are found."""
    if fault == "order":
        undo = lifecycle._undo

        def oldest_first(changes, status):
            todo = changes.node(UNDO)
            changes.put(UNDO, lifecycle.replace(todo, via=todo.via[::-1]))
            undo(changes, status)

        monkeypatch.setattr(lifecycle, "_undo", oldest_first)
    else:
        monkeypatch.setattr(lifecycle, "stops", lambda changes, _: bool(changes.run.stopping))
    settings = hypothesis.settings(
        max_examples=300, deadline=None, database=None, phases=[hypothesis.Phase.generate]
    )
    with pytest.raises((AssertionError, KeyError)):
        settings(hypothesis.given(stories())(in_memory))()
