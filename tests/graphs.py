"""Small graphs for tests, and a way to run one on an engine step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from runner import Graph, GraphBuilder, hooks
from runner.definition.registry import Registry
from runner.execution.engine import Engine
from runner.execution.results import GraphResult, graph_result
from runner.operations.answers import apply_decisions
from runner.records.interrupts import Decision
from runner.store.memory.store import MemoryStore
from runner.testing import ManualClock

AGENT_EVENTS = (
    hooks.BeforeInvocationEvent,
    hooks.MessageAddedEvent,
    hooks.BeforeModelCallEvent,
    hooks.AfterModelCallEvent,
    hooks.BeforeToolsEvent,
    hooks.BeforeToolCallEvent,
    hooks.AfterToolCallEvent,
    hooks.AfterToolsEvent,
    hooks.AfterInvocationEvent,
)
"""The events of an agent."""


def ident(ctx):
    """Return the node's own id."""
    return ctx.node_id


def wired(
    nodes: dict[str, Callable | Graph], *edges: str | tuple, **options: dict
) -> GraphBuilder:
    """Build from `{"a": fn}` and edges "a b" or ("a b", condition); options by node id."""
    builder = GraphBuilder()
    for name, executor in nodes.items():
        builder.add_node(executor, name, **options.get(name, {}))
    for edge in edges:
        ends, condition = edge if isinstance(edge, tuple) else (edge, None)
        builder.add_edge(*ends.split(), condition)
    starts(
        builder,
        nodes,
        [tuple((edge if isinstance(edge, str) else edge[0]).split()) for edge in edges],
    )
    return builder


def starts(
    builder: GraphBuilder,
    nodes: Sequence[str] | dict[str, object],
    edges: Sequence[tuple[str, str]],
) -> None:
    """Name as entry points what has no incoming edge, where a node has no edge at all: see `build`."""
    joined = {node for edge in edges for node in edge}
    targets = {target for source, target in edges if source != target}
    if joined and not joined.issuperset(nodes):
        for node in nodes:
            if node not in targets:
                builder.set_entry_point(node)


def single(function: Callable, **options) -> Graph:
    """Build a graph of the one node "a"."""
    return wired({"a": function}, a=options).build()


def answers(*pairs: tuple[str, object]) -> list[dict]:
    """Write answers in the shape of Strands."""
    return [
        {"interruptResponse": {"interruptId": question_id, "response": response}}
        for question_id, response in pairs
    ]


def answer_all(result: GraphResult, response: object = "yes") -> list[dict]:
    """Answer every open question alike."""
    return answers(*((interrupt.id, response) for interrupt in result.interrupts))


class Bench:
    """A graph on an engine whose doorbells ring only when the test says so."""

    def __init__(self, graph: Graph, store: type[MemoryStore] = MemoryStore) -> None:
        self.clock = ManualClock()
        self.store = store(self.clock)
        registry = Registry()
        registry.add("bench", lambda: graph)
        self.bells: list = []
        self.calls: list = []
        self.outage: Exception | None = None
        self.engine = Engine(self.store, self, registry)
        self.engine.worker = ""  # sizes are compared, and names of machines differ
        self.run_id = ""

    def ring(self, doorbells):
        """Keep the doorbells for later."""
        self.bells += doorbells

    def call(self, task, kwargs, task_id):
        """Keep the tasks called at ends of runs."""
        if self.outage:
            raise self.outage
        self.calls.append((task, kwargs, task_id))
        return True

    def start(self, task: object = "task", **options) -> Bench:
        """Begin a run."""
        self.run_id = self.engine.start("bench", task, **options)
        return self

    def deliver(self, node: str | None = None) -> str:
        """Ring one doorbell, the oldest or that of a node."""
        bell = next(bell for bell in self.bells if node in {None, bell.node})
        self.bells.remove(bell)
        return self.engine.deliver(bell.run_id, bell.node, bell.visit, bell.attempt).word

    def finish(self) -> GraphResult:
        """Ring until nothing is left to ring, and read the run."""
        self.finish_all()
        return self.result()

    def finish_all(self) -> None:
        """Ring until nothing is left to ring."""
        while self.bells:
            self.deliver()

    def later(self, seconds: float) -> None:
        """Let time pass, and do what is due."""
        self.clock.advance(seconds)
        self.engine.sweep()

    def result(self) -> GraphResult:
        """Read the run."""
        return graph_result(self.store, self.store.read(self.run_id))

    def answer(self, response: object = "yes") -> None:
        """Answer every open question alike."""
        responses = [Decision(interrupt.id, response) for interrupt in self.result().interrupts]
        assert {receipt.status for receipt in apply_decisions(self.engine, responses)} == {
            "accepted"
        }
