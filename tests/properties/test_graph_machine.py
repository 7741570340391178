"""A run comes to the same end however its messages travel and wherever it pauses.

Random graphs run twice: plainly, and on an engine whose doorbells are lost, doubled and shuffled,
whose workers die, whose answers come in any order, and whose store is written out and read back,
with code built anew, between every two steps. Both must end alike.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import hypothesis
from hypothesis import strategies as st

from runner import Graph, GraphBuilder, RetryPolicy, Status, codec
from runner.engine import Engine
from runner.errors import DefinitionError
from runner.interrupts import Answer, Interrupt
from runner.registry import Registry
from runner.results import GraphResult, graph_result
from runner.run import FINAL
from runner.schedule import CRASH_BUDGET
from runner.store.kept import KeptRun
from runner.store.memory import MemoryStore
from runner.testing import ManualClock

KINDS = ("works", "asks", "asks twice", "fails", "fails once", "is a graph")


@dataclass(frozen=True)
class Plan:
    """A graph as plain values: `repeats` are back edges taken until the source's visit of that number."""

    kinds: tuple[str, ...]
    anys: frozenset[int]
    edges: tuple[tuple[int, int, str], ...]
    repeats: tuple[tuple[int, int, int], ...]
    policy: str


@st.composite
def plans(draw) -> Plan:
    """Draw a graph that can be built: forward edges with conditions, some loops, any joins."""
    size = draw(st.integers(1, 6))
    numbers = st.integers(0, size - 1)
    pairs = draw(st.lists(st.tuples(numbers, numbers), max_size=9, unique=True))
    conditions = st.sampled_from(["always", "always", "never", "odd visits", "even visits"])
    return Plan(
        kinds=tuple(draw(st.lists(st.sampled_from(KINDS), min_size=size, max_size=size))),
        anys=frozenset(draw(st.lists(numbers, max_size=2))),
        edges=tuple((low, high, draw(conditions)) for low, high in pairs if low < high),
        repeats=tuple((high, low, draw(st.integers(2, 3))) for low, high in pairs if low >= high)[:2],
        policy=draw(st.sampled_from(["continue", "continue", "fail_fast"])),
    )


class Died(BaseException):
    """A worker ended in the middle of a node."""


@dataclass
class World:
    """What nodes touch outside their run: effects that are counted, and deaths that are planned."""

    effects: Counter = field(default_factory=Counter)
    dies: str = ""
    deaths: int = 0

    def point(self, name: str) -> None:
        """Die here, if that is planned; not so often that a node would be given up."""
        if self.dies == name and self.deaths < CRASH_BUDGET - 1:
            self.deaths += 1
            self.dies = ""
            raise Died

    def pay(self, ctx) -> str:
        """Do something that can be seen from outside."""
        self.effects[ctx.run_id, ctx.node_id, ctx.visit] += 1
        return "paid"


def node(kind: str, world: World, *, reads: bool):
    """Make a function of a kind; its output tells all that it was told."""
    questions = {"asks": ["one"], "asks twice": ["one", "two"]}.get(kind, [])

    def work(ctx):
        world.point("start")
        paid = ctx.once("pay", lambda: world.pay(ctx))
        given = [ctx.interrupt(name) for name in questions]
        world.point("end")
        if kind == "fails" or (kind == "fails once" and ctx.attempt == 1):
            raise ValueError(ctx.node_id)
        told = codec.dump_json(sorted(ctx.inputs.items())) if reads else b""
        return [ctx.node_id, ctx.visit, paid, given, hashlib.sha256(told).hexdigest()[:8]]

    return work


def inner(world: World) -> Graph:
    """Make a graph to stand inside another: one node, then one that asks."""
    builder = GraphBuilder()
    builder.add_node(node("works", world, reads=True), "x")
    builder.add_node(node("asks", world, reads=True), "y")
    builder.add_edge("x", "y")
    return builder.build()


def build(plan: Plan, world: World) -> Graph:
    """Build a plan, as each process does for itself."""
    builder = GraphBuilder().set_failure_policy(plan.policy)
    for number, kind in enumerate(plan.kinds):
        # What an any-join is told depends on who came first, so it does not tell.
        made = inner(world) if kind == "is a graph" else node(kind, world, reads=number not in plan.anys)
        retry = RetryPolicy(9, backoff=1, jitter=0) if kind == "fails once" else None
        builder.add_node(made, f"n{number}", join="any" if number in plan.anys else "all", retry=retry)
    parity = {"odd visits": 1, "even visits": 0}
    for low, high, condition in plan.edges:
        wanted = parity.get(condition)
        holds = (lambda state, wanted=wanted: state.visit % 2 == wanted) if wanted is not None else None
        builder.add_edge(f"n{low}", f"n{high}", (lambda state: False) if condition == "never" else holds)
    for high, low, rounds in plan.repeats:
        builder.add_edge(f"n{high}", f"n{low}", lambda state, rounds=rounds: state.visit < rounds, back=True)
    return builder.build()


# -- a store that is written out and read back ---------------------------------------------------------


def copied(record: Any) -> Any:
    """Write a record as bytes and read it strictly."""
    return codec.decode(type(record), codec.encode(record))


def as_stored(value: Any) -> Any:
    """Write JSON data as bytes and read it strictly."""
    return codec.load_json(codec.dump_json(value))


def read_back(run: KeptRun) -> KeptRun:
    """Bring all of a run through its stored form."""
    records = {name: {at: copied(each) for at, each in getattr(run, name).items()} for name in RECORDS}
    documents = {name: {at: as_stored(each) for at, each in getattr(run, name).items()} for name in DOCUMENTS}
    plain = {name: copy.deepcopy(getattr(run, name)) for name in PLAIN}
    return replace(run, record=copied(run.record), start=copied(run.start), **records, **documents, **plain)


RECORDS = ("nodes", "loops", "maps", "arrived", "questions")
DOCUMENTS = ("items", "outputs", "entries", "given", "documents", "messages")
PLAIN = ("idle", "order", "winners", "children", "events")


def reopened(store: MemoryStore, clock: ManualClock) -> MemoryStore:
    """Open a second store on what the first one has written."""
    new, old = MemoryStore(clock), store._shelf
    shelf = new._shelf
    shelf.shapes, shelf.current, shelf.timers = dict(old.shapes), dict(old.current), dict(old.timers)
    shelf.places = old.places
    shelf.notices, shelf.dead = as_stored(old.notices), as_stored(old.dead)
    shelf.runs = {run_id: read_back(run) for run_id, run in old.runs.items()}
    new._keys = dict(store._keys)
    return new


# -- running -------------------------------------------------------------------------------------------


class Process:
    """An engine with its own code, and the queue between processes."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.world, self.clock = plan, World(), ManualClock()
        self.store = MemoryStore(self.clock)
        self.queue: list = []
        self.engine = self._engine()
        self.run_id = self.engine.start("plan", "task")

    def _engine(self) -> Engine:
        registry = Registry()
        registry.add("plan", lambda: build(self.plan, self.world))
        return Engine(self.store, self, registry, math.inf)

    def ring(self, doorbells):
        """Put doorbells on the queue."""
        self.queue += doorbells

    def restart(self) -> None:
        """Go on in another process: new code, and the store as it was written."""
        self.store = reopened(self.store, self.clock)
        self.engine = self._engine()

    def deliver(self, position: int = 0, *, keep: bool = False) -> None:
        """Deliver one message of the queue; a doubled one stays on it."""
        self.queue.sort(key=lambda bell: (bell.graph_id, bell.node, bell.visit, bell.attempt))
        bell = self.queue[position % len(self.queue)]
        if not keep:
            self.queue.remove(bell)
        with contextlib.suppress(Died):
            self.engine.deliver(bell.run_id, bell.node, bell.visit, bell.attempt)

    def questions(self) -> list[Interrupt]:
        """List the open questions, in an order that does not depend on run ids."""
        found = self.store.open_interrupts()
        graphs = {each.run_id: self.store.peek(each.run_id).graph_id for each in found}
        return sorted(found, key=lambda each: (graphs[each.run_id], each.node_id, each.visit, each.name))

    def answer(self, chosen) -> None:
        """Answer some of the open questions, each in its own way."""
        given = [Answer(each.id, f"{each.node_id} {each.visit} {each.name}") for each in chosen]
        assert {receipt.status for receipt in self.engine.answer(given)} <= {"accepted"}

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and do what is due."""
        self.clock.advance(seconds)
        self.engine.sweep()

    def result(self) -> GraphResult:
        """Read the run."""
        return graph_result(self.store, self.store.read(self.run_id))

    def finish(self) -> GraphResult:
        """Go on to the end, message by message."""
        for _ in range(500):
            while self.queue:
                self.deliver()
            self.answer(self.store.open_interrupts())
            if not self.queue:
                if self.result().status in FINAL:
                    return self.result()
                self.pass_time(31)
        raise AssertionError(f"the run never ends: {self.result()}")


def told(result: GraphResult) -> tuple:
    """What of a result must not depend on how it came about."""
    nodes = {
        name: (found.status, found.visit, found.output, found.error and str(found.error))
        for name, found in result.results.items()
    }
    return result.status, Counter(result.execution_order), nodes


def follows_the_edges(plan: Plan, order: list[str]) -> bool:
    """Without loops, a node that joins all comes after every node before it."""
    at = {name: position for position, name in enumerate(order)}
    return all(
        at[f"n{low}"] < at[f"n{high}"]
        for low, high, _ in plan.edges
        if high not in plan.anys and f"n{low}" in at and f"n{high}" in at
    )


def expected_statuses(plan: Plan) -> dict[str, Status]:
    """Work a graph without loops out by hand: a node runs when one way to it is live."""
    found: dict[str, Status] = {}
    for number, kind in enumerate(plan.kinds):
        into = [(low, when) for low, high, when in plan.edges if high == number]
        live = [low for low, when in into if when in LIVE and found[f"n{low}"] is Status.COMPLETED]
        ended = Status.FAILED if kind == "fails" else Status.COMPLETED
        found[f"n{number}"] = ended if live or not into else Status.SKIPPED
    return found


LIVE = {"always", "odd visits"}


def started(process: Process) -> set[tuple[str, str, int]]:
    """List every visit of a function that was started, in all runs."""
    runs = [process.run_id, *process.store.children(process.run_id)]
    told = [(run_id, event) for run_id in runs for event in process.store.events(run_id)]
    events = [(run_id, event) for run_id, event in told if "/" not in event.node]  # else told again
    visits = {(run_id, event.node, event.visit) for run_id, event in events if event.kind == "node.started"}
    graphs = {f"n{number}" for number, kind in enumerate(process.plan.kinds) if kind == "is a graph"}
    return {visit for visit in visits if visit[0] != process.run_id or visit[1] not in graphs}


def check(process: Process) -> None:
    """What holds at every moment."""
    result = process.result()
    open_ids = {each.id for each in process.store.open_interrupts()}
    assert {each.id for each in result.interrupts} == open_ids
    if result.status is Status.INTERRUPTED:
        assert open_ids
    if result.status in FINAL:
        assert not open_ids
        live = {Status.READY, Status.RUNNING, Status.RETRYING, Status.WAITING}
        assert not live & {found.status for found in result.results.values()}


STEPS = st.sampled_from(
    [*["deliver"] * 6, "double", "double", "lose", "answer", "answer", "time", "die at start", "die at end"]
)


def step(process: Process, data) -> None:
    """Let one thing happen."""
    what = data.draw(STEPS, "step")
    number = data.draw(st.integers(0, 20), "which")
    open_now = process.questions()
    if what == "answer" and open_now:
        process.answer(open_now[number % len(open_now) :][: 1 + number % 2])
    elif what == "time":
        process.pass_time(number * 2)
    elif process.queue:
        if what == "lose":
            process.queue.pop(number % len(process.queue))
        else:
            process.world.dies = what.removeprefix("die at ")
            process.deliver(number, keep=what == "double")


@hypothesis.given(plans(), st.data())
@hypothesis.settings(
    max_examples=hypothesis.settings.default.max_examples // 10,
    suppress_health_check=list(hypothesis.HealthCheck),
)
def test_every_way_of_delivery_ends_alike(plan, data):
    """Lost, doubled, late and shuffled messages, dead workers and restarts change nothing of the end."""
    try:
        plain = Process(plan)
    except DefinitionError:
        hypothesis.reject()
    expected = plain.finish()
    process = Process(plan)

    for _ in range(data.draw(st.integers(0, 40), "steps")):
        process.restart()
        step(process, data)
        check(process)
    process.world.dies = ""
    process.restart()
    found = process.finish()

    check(process)
    assert set(process.world.effects.values()) <= {1}
    if plan.policy == "fail_fast" and expected.failed_nodes:
        assert found.status is Status.FAILED
        return
    assert process.world.effects == dict.fromkeys(started(process), 1)
    assert told(found) == told(expected)
    assert sorted(process.world.effects.values()) == sorted(plain.world.effects.values())
    if not plan.repeats:
        assert follows_the_edges(plan, found.execution_order)
        assert {name: node.status for name, node in found.results.items()} == expected_statuses(plan)
