"""Limits under any order of claims, ends, waits and crashes: never too many, and never a lost wake-up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.limits.limit import Limit
from runner.records.interrupts import Decision
from runner.records.run import Status
from runner.store.interface import Claim, Settlement
from runner.store.memory.store import MemoryStore
from runner.store.requests import AnswerQuestions, ClaimVisit, ParkVisit, SettleVisit
from runner.testing import ManualClock
from tests.contract.store import ManualWorker
from tests.contract.store.manual_worker import shape

LEASE = 30
NODES = "abcdef"
DONE = Settlement(Status.COMPLETED, "", None, {"v": 1})

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["claim", "claim", "settle", "park", "answer", "crash", "lose", "time"]
        ),
        st.integers(0, 9),
    ),
    max_size=60,
)
LIMITS = st.lists(
    st.sampled_from(
        [Limit("one", concurrency=1), Limit("two", concurrency=2), Limit("slow", rate=1, per=3)]
    ),
    unique=True,
    min_size=1,
    max_size=3,
)


class Crowd:
    """Some runs of nodes with limits, the doorbells that were rung, and the visits that are held."""

    def __init__(self, limits: dict[str, list[Limit]]) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(clock=self.clock, lease=LEASE)
        self.worker = ManualWorker(self.store)
        graph = shape(" ".join(NODES), limits=limits)
        self.limits = limits
        self.runs = [self.worker.start(graph) for _ in range(2)]
        self.bells = [(run_id, node, 1, 1) for run_id in self.runs for node in NODES]
        self.held: list = []
        self.asked: list = []

    def take(self, reply) -> None:
        self.bells += [
            (bell.run_id, bell.node, bell.visit, bell.attempt) for bell in reply.doorbells
        ]

    def step(self, kind: str, which: int) -> None:
        if kind in {"claim", "lose"} and self.bells:
            bell = self.bells.pop(which % len(self.bells))
            reply = (
                self.store.do(ClaimVisit(*bell, self.worker.nonce()))
                if kind == "claim"
                else None
            )
            if isinstance(reply, Claim):
                self.held.append(reply.token)
            elif reply is not None:
                self.take(reply)
        elif kind in {"settle", "park", "crash"} and self.held:
            self.end(kind, self.held.pop(which % len(self.held)))
        elif kind == "answer" and self.asked:
            self.take(self.store.do(AnswerQuestions([self.asked.pop()], self.worker.nonce())))
        elif kind == "time":
            self.pass_time(which * 5)

    def end(self, kind: str, token) -> None:
        if kind == "settle":
            self.take(self.store.do(SettleVisit(token, DONE, self.worker.nonce())))
        elif kind == "park":
            question = self.worker.question(token)
            reply = self.store.do(ParkVisit(token, [question], None))
            self.take(reply)
            if reply.word == "waiting":
                self.asked.append(Decision(question.id, "yes"))

    def pass_time(self, seconds: float) -> None:
        """Let time pass; workers that are alive renew their leases."""
        self.store.renew(self.held)
        self.clock.advance(seconds)
        self.take(self.store.sweep())
        self.held = [
            token
            for token, word in zip(self.held, self.store.renew(self.held), strict=True)
            if word == "ok"
        ]

    def statuses(self, name: str) -> list[Status]:
        """Where the nodes stand that have a limit of this name."""
        return [
            record.status
            for run_id in self.runs
            for node, record in self.store.read(run_id).nodes.items()
            if name in {limit.name for limit in self.limits[node]}
        ]


@pytest.mark.full
@given(st.fixed_dictionaries(dict.fromkeys(NODES, LIMITS)), STEPS)
def test_a_limit_holds_and_everything_ends(limits, steps):
    """In any order no more run than there are places, and in the end every node gets its turn."""
    crowd = Crowd(limits)
    for kind, which in steps:
        crowd.step(kind, which)
        assert crowd.statuses("one").count(Status.RUNNING) <= 1
        assert crowd.statuses("two").count(Status.RUNNING) <= 2

    for _ in range(2_000):
        if all(crowd.store.peek(run_id).is_final for run_id in crowd.runs):
            break
        for kind in ("claim", "settle", "answer"):
            crowd.step(kind, 0)
        if not (crowd.bells or crowd.held):
            crowd.pass_time(3)
    ended = {
        str(record.status)
        for run_id in crowd.runs
        for record in crowd.store.read(run_id).nodes.values()
    }
    assert ended <= {"completed", "failed", "cancelled"}
    places = crowd.store._database.semaphores
    assert not any(places.holders.values())
    assert not any(places.waiting.values())


@pytest.mark.full
@given(st.permutations(range(6)), st.integers(1, 3))
def test_places_go_on_in_the_order_of_asking(order, places):
    """Whoever asked first has a place first, when none is free at first."""
    clock = ManualClock()
    worker = ManualWorker(MemoryStore(clock=clock, lease=LEASE))
    limit = [Limit("some", concurrency=places)]
    first = worker.start(shape("x y z", limits=dict.fromkeys("xyz", limit)))
    running = [worker.token(first, node) for node in "xyz"[:places]]
    run_id = worker.start(shape(" ".join(NODES), limits=dict.fromkeys(NODES, limit), name="h"))
    for number in order:
        clock.advance(0.001)
        assert (
            worker.store.do(ClaimVisit(run_id, NODES[number], 1, 1, worker.nonce())).word
            == "limited"
        )

    served = []
    while running:
        reply = worker.store.do(SettleVisit(running.pop(0), DONE, worker.nonce()))
        for bell in reply.doorbells:
            if bell.run_id == run_id:
                served.append(NODES.index(bell.node))
                running.append(worker.token(run_id, bell.node))
    assert served == list(order)
