"""What a step costs in a run of many, counted: the last hundred as much as the first."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Iterator
from itertools import count
from types import FrameType

import pytest
import redis

from runner import Agent, GraphBuilder, NodeContext, Status, ToolContext, async_loop, tool
from runner.definition.registry import Registry
from runner.execution.engine import Engine
from runner.operations.answers import apply_decisions
from runner.records.interrupts import Decision
from runner.store.redis.store import RedisStore
from runner.store.requests import EmitEvent, SaveCheckpoint
from runner.testing import ScriptedModel
from tests.agent.visits import use
from tests.contract.store.manual_worker import ManualWorker, saved
from tests.contract.test_large_values import Bells

STEPS, COUNTED, UNCOUNTED = 1_000, 100, 10
"""Steps of a run; those of its beginning and of its end that are counted; those before them."""

QUESTIONS, ASKED = 60, 10
"""The same for questions of a visit, whose code runs from the top after each."""

CONVERSATION, ANSWERS = 200_000, 3
"""Bytes that an agent has read, and the answers that it waits for then."""


class Meter:
    """Counts calls in Redis, bytes to and from it, and calls of functions, in this thread and on the loop."""

    def __init__(self, client: redis.Redis, steps: int = STEPS, counted: int = COUNTED) -> None:
        self._client, self._steps, self._calls = client, steps, 0
        self._begins = UNCOUNTED, steps - counted
        self._ends = UNCOUNTED + counted, steps
        self.costs: list[tuple[int, int, int]] = []

    def _count(self, _: FrameType, event: str, __: object) -> None:
        self._calls += event in {"call", "c_call"}

    def _watch(self, profile: Callable[[FrameType, str, object], None] | None) -> None:
        async def watch_loop() -> None:
            sys.setprofile(profile)

        sys.setprofile(None)
        async_loop.run(watch_loop())
        sys.setprofile(profile)

    def __iter__(self) -> Iterator[int]:
        """Number the steps; each ends where the next one is asked for."""
        try:
            yield from self._number()
        finally:
            self._watch(None)

    def _number(self) -> Iterator[int]:
        for number in range(self._steps):
            if number in self._begins:
                self._client.config_resetstat()
                self._watch(self._count)
                self._calls = 0
            yield number
            if number + 1 in self._ends:
                self._watch(None)
                stats, commands = self._client.info("stats"), self._client.info("commandstats")
                network = stats["total_net_input_bytes"] + stats["total_net_output_bytes"]
                sent = sum(command["calls"] for command in commands.values())
                self.costs.append((sent, network, self._calls))


class Worker:
    """An engine for one graph, and the doorbells of its runs."""

    def __init__(self, store: RedisStore, builder: GraphBuilder) -> None:
        registry, self._bells = Registry(), Bells()
        registry.add("g", builder.build)
        self.store, self.engine = store, Engine(store, self._bells, registry)
        self.run_id = self.engine.start("g", "task")

    def deliver(self, nodes: int = 1) -> None:
        """Answer so many doorbells."""
        self._bells.deliver(self.engine, nodes)


def loop_turns(store: RedisStore, meter: Meter) -> None:
    """A node that calls itself."""
    builder = GraphBuilder()
    builder.add_node(lambda ctx: ctx.visit, "a")
    builder.add_node(lambda _: None, "b")
    builder.set_entry_point("a")
    builder.add_edge("a", "a", condition=lambda state: state.results["a"].output, back=True)
    builder.add_edge("a", "b", condition=lambda state: not state.results["a"].output)
    worker = Worker(store, builder)
    for _ in meter:
        worker.deliver()


def agent_turns(store: RedisStore, meter: Meter) -> None:
    """What an agent stores of a message."""
    _, token = ManualWorker(store).begin("a")
    for number in meter:
        store.do(SaveCheckpoint(token, saved(number + 1, "message", keep=number)))


def items(store: RedisStore, meter: Meter) -> None:
    """A map of many items, some at once: the end of one begins another."""
    builder = GraphBuilder()
    builder.add_map(
        lambda ctx: ctx.task, "m", over=lambda _: ["item"] * 2 * STEPS, concurrency=5
    )
    worker = Worker(store, builder)
    worker.deliver()
    for _ in meter:
        worker.deliver()


def events(store: RedisStore, meter: Meter) -> None:
    """A node that reports how far it is."""

    def report(ctx: NodeContext) -> None:
        for _ in meter:
            ctx.progress(0.5)

    builder = GraphBuilder()
    builder.add_node(report, "a")
    Worker(store, builder).deliver()


def read_events(store: RedisStore, meter: Meter, *, follows: bool = True) -> None:
    """A reader of the events of a run, who goes on after the last one."""
    run_id, last = ManualWorker(store).start("a"), ""
    for _ in meter:
        store.do(EmitEvent(run_id, "progress", "a", 1, {"fraction": 0.5}))
        *_, event = store.events(run_id, last)
        last = event.position if follows else ""


def asking_function() -> Callable[[NodeContext], None]:
    """Make a function that asks one question after another."""

    def ask(ctx: NodeContext) -> None:
        for number in count():
            ctx.interrupt(f"q{number}")

    return ask


def asking_agent() -> Agent:
    """Make an agent whose tool asks in each turn."""

    @tool(context=True)
    def ask(number: int, tool_context: ToolContext) -> str:
        """Ask a person."""
        return tool_context.interrupt(f"q{number}")

    replies = [use("ask", number=number) for number in range(QUESTIONS + 1)]
    return Agent("a", ScriptedModel(replies), tools=[ask])


@pytest.mark.slow
@pytest.mark.parametrize("run", [loop_turns, agent_turns, items, events, read_events])
def test_a_step_costs_the_same_in_a_long_run(store, client, run):
    """The last turns, items or events of a run take as many calls and bytes as the first ones."""
    meter = Meter(client)
    run(store, meter)
    first, last = meter.costs

    assert last[0] <= first[0] * 1.02
    assert last[1] <= first[1] * 1.05
    assert last[2] <= first[2] * 1.02


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "bytes_more", "calls_more"),
    [(asking_function, 350, 200), (asking_agent, 650, 200)],
)
def test_a_visit_reads_what_it_has_asked_before(
    store,
    client,
    make,
    bytes_more,
    calls_more,
):
    """An answered question adds bytes and calls of functions to each later execution, no commands."""
    builder, meter = GraphBuilder(), Meter(client, QUESTIONS, ASKED)
    builder.add_node(make(), "a")
    worker = Worker(store, builder)
    worker.deliver()
    for _ in meter:
        (question,) = store.open_interrupts().items
        apply_decisions(worker.engine, [Decision(question.id, "yes")])
        worker.deliver()
    first, last = meter.costs
    added = ASKED * (QUESTIONS - UNCOUNTED - ASKED)

    assert last[0] <= first[0] * 1.02
    assert last[1] - first[1] <= added * bytes_more
    assert last[2] - first[2] <= added * calls_more


def test_a_step_that_reads_its_run_would_be_seen(store, client):
    """Control: where all events are read in each step, the last ones cost more."""
    meter = Meter(client, 100, 10)
    read_events(store, meter, follows=False)
    first, last = meter.costs

    assert last[1] > first[1] * 1.5
    assert last[2] > first[2] * 1.5


@pytest.mark.full
def test_an_answer_sends_a_conversation_once(store, client):
    """A worker reads it where the agent goes on; no pause stores it anew, and no result reads it."""
    text = secrets.token_hex(CONVERSATION // 2)

    @tool
    def look() -> str:
        """Look at much."""
        return text

    @tool(context=True)
    def ask(number: int, tool_context: ToolContext) -> str:
        """Ask a person."""
        return tool_context.interrupt(f"q{number}")

    replies = [use("look"), *(use("ask", number=number) for number in range(ANSWERS)), "done"]
    builder = GraphBuilder()
    builder.add_node(Agent("a", ScriptedModel(replies), tools=[look, ask]), "a")
    worker, costs = Worker(store, builder), []
    statuses: list[Status] = []
    worker.deliver()
    for _ in range(ANSWERS):
        (question,) = store.open_interrupts().items
        client.config_resetstat()
        apply_decisions(worker.engine, [Decision(question.id, "yes")])
        worker.deliver()
        run = store.read(worker.run_id)
        assert run is not None
        statuses.append(run.record.status)
        stats = client.info("stats")
        costs.append(
            (
                stats["total_net_output_bytes"] / CONVERSATION,
                stats["total_net_input_bytes"] / CONVERSATION,
            )
        )

    assert statuses == [Status.INTERRUPTED, Status.INTERRUPTED, Status.COMPLETED]
    assert max(sent for sent, _ in costs) < 1.1
    assert max(written for _, written in costs) < 0.1
