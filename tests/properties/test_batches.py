"""Graphs in batches against a small model of how Strands schedules them, however messages travel.

The model is a loop over batches with all results in its hands. The runs have shuffled, doubled and
lost doorbells, workers that die in a node or while they choose, people who answer in any order, and a
store in memory or in Redis.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import hypothesis
import pytest
import redis
from hypothesis import strategies as st

from runner import Graph, GraphBuilder, Status
from runner.engine import Engine
from runner.graph import BATCH
from runner.interrupts import Answer
from runner.registry import Registry
from runner.results import graph_result
from runner.schedule import CRASH_BUDGET
from runner.store.memory import MemoryStore
from runner.store.redis import RedisStore
from runner.testing import ManualClock

EXAMPLES = max(10, hypothesis.settings.default.max_examples // 4)
MARKS = {
    "always": None,
    "never": lambda visits, source: False,
    "odd": lambda visits, source: visits[source] % 2 == 1,
    "twice": lambda visits, source: visits[source] < 3,
    "after a": lambda visits, source: visits.get("a", 0) > 0,
}


@dataclass(frozen=True)
class Plan:
    """A graph as plain values: which nodes ask a person, edges with a mark, entry points, a limit."""

    nodes: str
    asking: frozenset[str]
    edges: tuple[tuple[str, str, str], ...]
    entries: str
    limit: int


@st.composite
def plans(draw) -> Plan:
    """Draw any edges, cycles and joins among them; conditions look at what has run."""
    names = "abcdef"[: draw(st.integers(1, 6))]
    node = st.sampled_from(names)
    pairs = draw(st.lists(st.tuples(node, node), max_size=10, unique=True))
    marks = st.sampled_from(["always", *MARKS])
    return Plan(
        names,
        frozenset(draw(st.lists(node, max_size=2))),
        tuple((source, target, draw(marks)) for source, target in pairs),
        "".join(draw(st.lists(node, min_size=1, max_size=2, unique=True))),
        draw(st.integers(2, 12)),
    )


@dataclass
class Model:
    """The model: batches, what each visit was told of, and how the run ends."""

    batches: list[list[str]] = field(default_factory=list)
    told: dict[str, list[str]] = field(default_factory=dict)
    visits: dict[str, int] = field(default_factory=dict)
    status: Status = Status.COMPLETED


def expected(plan: Plan) -> Model:
    """Work a plan out as Strands does, with every result at hand between two batches."""
    model = Model()

    def holds(edge: tuple[str, str, str]) -> bool:
        mark = MARKS[edge[2]]
        return mark is None or mark(model.visits, edge[0])

    batch = dict.fromkeys(plan.entries, ())
    count = 0
    while batch:
        if count >= plan.limit:
            model.status = Status.FAILED
            return model
        model.batches.append(sorted(batch))
        for node, inputs in batch.items():
            model.visits[node] = model.visits.get(node, 0) + 1
            model.told[f"{node}{model.visits[node]}"] = list(inputs)
        count += len(batch)
        following = {edge[1] for edge in plan.edges if edge[0] in batch and holds(edge)}
        batch = {
            node: tuple(
                f"{edge[0]}{model.visits[edge[0]]}"
                for edge in plan.edges
                if edge[1] == node and edge[0] in model.visits and holds(edge)
            )
            for node in following
        }
    return model


class Died(BaseException):
    """A worker ended in the middle of a node or of a choice."""


class Process:
    """An engine, the queue, and deaths that are planned."""

    def __init__(self, plan: Plan, store_of) -> None:
        self.plan, self.clock = plan, ManualClock()
        self.store = store_of(self.clock)
        self.queue: list = []
        self.dies, self.deaths = False, 0
        registry = Registry()
        registry.add("plan", self.build)
        self.engine = Engine(self.store, self, registry)
        self.run_id = self.engine.start("plan", "task")

    def ring(self, doorbells) -> None:
        """Put doorbells on the queue."""
        self.queue += doorbells

    def point(self) -> None:
        """Die here, if that is planned; not so often that the node would be given up."""
        if self.dies and self.deaths < CRASH_BUDGET - 1:
            self.dies, self.deaths = False, self.deaths + 1
            raise Died

    def build(self) -> Graph:
        """Build the plan with nodes that tell what they were told of."""
        builder = GraphBuilder(compat="strands").set_max_node_executions(self.plan.limit)
        for name in self.plan.nodes:
            builder.add_node(self.node(asks=name in self.plan.asking), name)
        for source, target, mark in self.plan.edges:
            builder.add_edge(source, target, self.condition(mark))
        for name in self.plan.entries:
            builder.set_entry_point(name)
        return builder.build()

    def node(self, *, asks: bool):
        """Make a node's function."""

        def work(ctx):
            self.point()
            if asks:
                assert ctx.interrupt("go on?") == "yes"
            self.point()
            return [f"{ctx.node_id}{ctx.visit}", [output[0] for output in ctx.inputs.values()]]

        return work

    def condition(self, mark: str):
        """Make the condition of an edge; asking may be a worker's last deed."""

        def holds(state) -> bool:
            self.point()
            visits: Mapping[str, int] = {name: found.visit for name, found in state.results.items()}
            return MARKS[mark](visits, state.node_id)

        return None if MARKS[mark] is None else holds

    def deliver(self, position: int, *, keep: bool) -> None:
        """Deliver one message of the queue; a doubled one stays on it."""
        bell = self.queue[position % len(self.queue)]
        if not keep:
            self.queue.remove(bell)
        with contextlib.suppress(Died):
            self.engine.deliver(bell.run_id, bell.node, bell.visit, bell.attempt)

    def answer(self, position: int) -> None:
        """Answer one of the open questions."""
        found = sorted(self.store.open_interrupts(), key=lambda each: each.id)
        if found:
            self.engine.answer([Answer(found[position % len(found)].id, "yes")])

    def step(self, what: str, number: int) -> None:
        """Let one thing happen."""
        if what == "answer":
            self.answer(number)
        elif what == "time":
            self.clock.advance(31)
            self.engine.sweep()
        elif self.queue and what == "lose":
            self.queue.pop(number % len(self.queue))
        elif self.queue:
            self.dies = what == "die"
            self.deliver(number, keep=what == "double")
            self.dies = False

    def finish(self):
        """Go on to the end, and read the run."""
        for _ in range(400):
            self.step("deliver" if self.queue else "answer", 0)
            if self.store.peek(self.run_id).is_final:
                return graph_result(self.store, self.store.read(self.run_id))
            if not self.queue and not self.store.open_interrupts():
                self.step("time", 0)
        raise AssertionError("the run never ends")

    def batches(self) -> list[list[str]]:
        """Cut the completed visits into batches, each sorted."""
        found: list[list[str]] = [[]]
        for event in self.store.events(self.run_id):
            if event.kind == "node.completed" and event.node == BATCH:
                found.append([])
            elif event.kind == "node.completed":
                found[-1].append(event.node)
        return [sorted(batch) for batch in found if batch]

    def told(self) -> dict[str, list[str]]:
        """Say for each visit of which visits it was told."""
        outputs = self.store.read(self.run_id).outputs
        return {output[0]: output[1] for (name, _), output in outputs.items() if name != BATCH}


STEPS = st.lists(
    st.tuples(
        st.sampled_from([*["deliver"] * 5, "double", "lose", "answer", "answer", "time", "die"]),
        st.integers(0, 9),
    ),
    max_size=40,
)


def agrees(plan: Plan, steps, store_of) -> None:
    """Run a plan through some steps to its end; it must be what the model says."""
    model, process = expected(plan), Process(plan, store_of)
    for what, number in steps:
        process.step(what, number)
    found = process.finish()

    assert process.batches() == model.batches
    assert process.told() == model.told
    assert found.status is model.status
    assert {name: each.visit for name, each in found.results.items()} == model.visits


@hypothesis.given(plans(), STEPS)
@hypothesis.settings(max_examples=EXAMPLES, suppress_health_check=list(hypothesis.HealthCheck), deadline=None)
def test_batches_in_memory(plan, steps):
    """Every way of delivery gives the batches, inputs and end that the model has."""
    agrees(plan, steps, MemoryStore)


@pytest.fixture(scope="module")
def server(store_server):
    """Give an address of a database that these tests may empty."""
    return store_server.url


@hypothesis.given(plan=plans(), steps=STEPS)
@hypothesis.settings(max_examples=EXAMPLES, suppress_health_check=list(hypothesis.HealthCheck), deadline=None)
def test_batches_in_redis(server, plan, steps):
    """So it is on Redis."""
    with redis.Redis.from_url(server) as client:
        client.flushdb()
    opened = []

    def store_of(clock):
        opened.append(RedisStore(server, clock=clock, push=False))
        return opened[-1]

    try:
        agrees(plan, steps, store_of)
    finally:
        for store in opened:
            store.close()
