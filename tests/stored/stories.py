"""Runs that stop in the middle, in every way in which a run can be stored, and how each must end.

A graph of a story never changes: the runs of earlier releases would be set aside as after a deploy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from runner import Budget, Concurrency, Debounce, Fairness, GraphBuilder
from runner.agent import Agent, ToolContext, tool
from runner.agent.models.scripted import ScriptedModel
from runner.limits.concurrency import admission
from runner.limits.fairness import LEAST_WINDOW
from runner.operations.answers import apply_decisions


class Killed(BaseException):
    """The worker's process dies here."""


dying = [True]
"""Whether nodes die that are to die in the middle: only while runs are exported."""


def first(ctx: Any) -> str:
    return "first"


def ask(ctx: Any) -> list[Any]:
    return [ctx.once("effect", lambda: "done once"), ctx.interrupt("approve", {"sum": 5})]


def die(ctx: Any) -> str:
    kept = ctx.once("effect", lambda: "done once" if dying[0] else "done twice")
    if dying[0]:
        raise Killed
    return kept


def last(ctx: Any) -> dict[str, Any]:
    return dict(ctx.inputs)


def fail(ctx: Any) -> str:
    if dying[0]:
        raise ValueError("broken")
    return "mended"


def agent() -> Agent:
    @tool(context=True)
    def approve(tool_context: ToolContext) -> str:
        """Ask a person."""
        return str(tool_context.interrupt("approve"))

    use = {"toolUse": {"name": "approve", "toolUseId": "t1", "input": {}}}
    return Agent("approver", ScriptedModel([[use], "the agent is done"]), [approve])


def chain(node: Any, name: str = "b") -> Any:
    builder = GraphBuilder()
    for each, said in ((first, "a"), (node, name), (last, "c")):
        builder.add_node(each, said)
    builder.add_edge("a", name)
    builder.add_edge(name, "c")
    return builder.build()


def loop() -> Any:
    builder = GraphBuilder()
    for each, name in ((first, "a"), (ask, "b"), (last, "c")):
        builder.add_node(each, name)
    builder.add_edge("a", "b")
    builder.add_edge("b", "a", lambda state: state.results["b"].output[1] == "again")
    builder.add_edge("b", "c", lambda state: state.results["b"].output[1] != "again")
    builder.set_entry_point("a")
    return builder.build()


def mapped() -> Any:
    builder = GraphBuilder()
    builder.add_node(lambda ctx: [1, 2, 3], "a")
    builder.add_map(
        lambda ctx: [ctx.task, ctx.interrupt(f"item {ctx.task}")], "b", over="a", concurrency=2
    )
    builder.add_node(last, "c")
    builder.add_edge("a", "b")
    builder.add_edge("b", "c")
    return builder.build()


def shared() -> Any:
    budget = Budget(per="run", model_calls=1, over="ask")
    builder = GraphBuilder()
    builder.add_node(lambda ctx: ["1", "2", "3"], "a")
    builder.add_map(
        Agent("spender", ScriptedModel(["done"]), budgets=[budget]),
        "b",
        over="a",
        concurrency=3,
    )
    builder.add_node(last, "c")
    builder.add_edge("a", "b")
    builder.add_edge("b", "c")
    return builder.build()


ASKED = ["done once", "yes"]


RAISE = {"raise_by": 10}
"""The answer to the question of a budget."""


@dataclass(frozen=True)
class Story:
    """A graph, where its run stands when it is stored, and what its last node gives in the end.

    `answers` are given before it is stored. `held` says that a deploy of another graph came before,
    `is_packed` that a sweep has packed it, `is_lost` that its doorbell was lost. It is the last of
    `starts` runs with one tag; `options` are those of the graph.
    `then` is what a person does who finds the run: answer (and what comes after it), retry, or nothing.
    """

    build: Callable[[], Any]
    status: str
    output: Any
    answers: tuple[Any, ...] = ()
    held: bool = False
    is_packed: bool = False
    is_lost: bool = False
    starts: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    then: str = "answer"
    order: list[str] = field(default_factory=lambda: ["a", "b", "c"])


STORIES = {
    "executing": Story(lambda: chain(die), "executing", {"b": "done once"}, then="nothing"),
    "waiting-function": Story(lambda: chain(ask), "interrupted", {"b": ASKED}),
    "answered-function": Story(
        lambda: chain(ask), "executing", {"b": ASKED}, ("yes",), then="nothing"
    ),
    "waiting-agent": Story(lambda: chain(agent()), "interrupted", {"b": "the agent is done"}),
    "nested": Story(lambda: chain(chain(ask)), "interrupted", {"b": {"b": ASKED}}),
    "loop": Story(
        loop, "interrupted", {"b": ASKED}, ("again",), order=["a", "b", "a", "b", "c"]
    ),
    "map": Story(mapped, "interrupted", {"b": [[1, "yes"], [2, "yes"], [3, "yes"]]}),
    "sum": Story(shared, "interrupted", {"b": ["done"] * 3}),
    "finished": Story(lambda: chain(first), "completed", {"b": "first"}, then="nothing"),
    "failed": Story(lambda: chain(fail), "failed", {"b": "mended"}, then="retry"),
    "packed": Story(
        lambda: chain(fail), "failed", {"b": "mended"}, then="retry", is_packed=True
    ),
    "queued": Story(
        lambda: chain(die),
        "executing",
        {"b": "done twice"},
        starts=2,
        options={"admission": admission("", None, Concurrency(1, by="tag:key"))},
        then="nothing",
    ),
    "debounced": Story(
        lambda: chain(first),
        "executing",
        {"b": "first"},
        options={"admission": admission("", None, None, Debounce(seconds=30, by="tag:key"))},
        then="nothing",
    ),
    "fair": Story(
        lambda: chain(first),
        "executing",
        {"b": "first"},
        is_lost=True,
        starts=LEAST_WINDOW + 1,
        options={"fairness": Fairness(by="tag:key")},
        then="nothing",
    ),
    "held": Story(
        lambda: chain(ask), "needs_migration", {"b": ASKED}, ("yes",), held=True, then="nothing"
    ),
}


class Office:
    """An engine whose doorbells ring only here."""

    def __init__(self, store: Any) -> None:
        self.store, self.bells = store, []
        self.open()

    def open(self, changed: Any = None) -> None:
        """Publish every graph, one of them changed."""
        from runner.definition.registry import Registry
        from runner.execution.engine import Engine

        registry = Registry()
        for name, story in STORIES.items():
            build = (lambda: chain(ask, "renamed")) if name == changed else story.build
            registry.add(name, build, **story.options)
        self.engine = Engine(self.store, self, registry)
        self.names = registry.names()
        self.engine.publish(self.names)

    def ring(self, bells: Any) -> None:
        """Keep doorbells until `work`."""
        self.bells += bells

    def call(self, task: str, kwargs: Any, task_id: str) -> bool:
        """No run of these calls a task."""
        raise AssertionError((task, kwargs, task_id))

    def work(self) -> None:
        """Do what is rung for, until nothing is."""
        while self.bells:
            bell = self.bells.pop(0)
            try:
                self.engine.deliver(bell.run_id, bell.node, bell.visit, bell.attempt)
            except Killed:
                continue

    def answer(self, run_ids: Any, response: Any) -> None:
        """Answer whatever these runs ask."""
        from runner.records.interrupts import Decision

        questions = [
            question for question in self.store.open_interrupts() if question.run_id in run_ids
        ]
        receipts = [
            apply_decisions(
                self.engine,
                [
                    Decision(
                        interrupt.id, response if interrupt.name[:7] != "budget." else RAISE
                    )
                ],
            )[0]
            for interrupt in questions
        ]
        assert all(receipt.status == "accepted" for receipt in receipts), receipts

    def family(self, run_id: str) -> list[str]:
        """Name a run and the child runs in it."""
        return [
            run_id,
            *(found for child in self.store.children(run_id) for found in self.family(child)),
        ]
