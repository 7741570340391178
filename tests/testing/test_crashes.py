from __future__ import annotations

import pytest

from examples.refunds.graph import refunds
from runner import GraphBuilder, RetryPolicy, Status
from runner.errors import UsageError
from runner.testing import CrashPoint
from tests.testing.graphs import graph_of


class Bank:
    """Remembers what it was asked to do."""

    def __init__(self):
        self.keys = []

    def transfer(self, key):
        self.keys.append(key)
        return len(self.keys)


@pytest.mark.parametrize(
    ("point", "effects", "starts"),
    [
        ("start", 1, 1),
        ("after_effect", 2, 2),
        ("after_record", 1, 2),
        ("before_commit", 1, 2),
        ("after_commit", 1, 1),
    ],
)
def test_a_worker_dies_at_each_point_and_the_run_ends_well(
    run_graph, crash_at, point, effects, starts
):
    """Only between an effect and its record is it repeated, and then with the same key."""
    bank, started = Bank(), []

    def pay(ctx):
        started.append(ctx.attempt)
        return ctx.once("transfer", lambda: bank.transfer(ctx.idempotency_key))

    def thank(ctx):
        return "thanks"

    crash_at("pay", point)
    run = run_graph(graph_of(pay, thank))

    assert run.status is Status.COMPLETED
    assert run.result.execution_order == ["pay", "thank"]
    assert len(bank.keys) == effects
    assert len(set(bank.keys)) == 1
    assert len(started) == starts


def test_a_node_that_kills_every_worker_fails(run_graph, crash_at):
    """After five lost workers the node is given up, and the run says so."""

    def pay(ctx):
        return "paid"

    crash_at("pay", "start", times=5)
    run = run_graph(graph_of(pay))

    assert run.status is Status.FAILED
    assert len(run.store.dead) == 1


def test_a_crash_point_must_exist(crash_at):
    """A misspelled point is no silent success."""
    with pytest.raises(UsageError, match="after_effect"):
        crash_at("pay", "after_lunch")


def test_a_lost_worker_uses_up_no_attempt(run_graph, crash_at, clock):
    """Two attempts are two failures, though a worker was lost before the question that was answered."""
    attempts = []

    def flaky(ctx):
        ctx.interrupt("go?")
        attempts.append(ctx.attempt)
        raise ConnectionError("away")

    crash_at("flaky", "start")
    run = run_graph(graph_of(flaky, retry=RetryPolicy(max_attempts=2, backoff=1)))
    clock.advance(60)
    run.answer("yes")
    clock.advance(60)

    assert run.status is Status.FAILED
    assert attempts == [2, 3]


USES = {
    CrashPoint.BEFORE_USE,
    CrashPoint.AFTER_USE,
}  # of approvals: tests/execution/test_effects.py


@pytest.mark.full
@pytest.mark.parametrize("point", [point for point in CrashPoint if point not in USES])
def test_an_agent_survives_its_worker(run_graph, crash_at, point):
    """Wherever an agent's worker dies, its run ends as if nothing had been."""
    crash_at("clerk", point)
    run = run_graph(refunds, "refund A-17")

    assert run.status is Status.COMPLETED
    assert run.result.results["letter"].output.endswith("was paid 35.00.")


def test_a_node_of_a_graph_inside_can_crash(run_graph, crash_at):
    """A graph inside is a run of its own, and its nodes' workers die, too."""
    inside, outside = GraphBuilder(), GraphBuilder()
    inside.add_node(lambda ctx: ctx.attempt, "count")
    outside.add_node(inside.build(), "inside")
    crash_at("count", "before_commit")
    run = run_graph(outside.build())

    assert run.status is Status.COMPLETED
    assert run.result.results["inside"].output == 2


def test_an_item_of_a_map_can_crash(run_graph, crash_at):
    """An item is a node, named as it is everywhere: `map[1]`."""
    builder = GraphBuilder()
    builder.add_map(lambda ctx: [ctx.task, ctx.attempt], "double")
    crash_at("double[1]", "start")

    assert run_graph(builder.build(), [5, 6]).result.results["double"].output == [
        [5, 1],
        [6, 2],
    ]


def test_a_crash_in_a_finally_writes_nothing(run_graph, crash_at):
    """Code that goes on after its worker's death is not heard: its effects are not recorded."""
    recorded = []

    def stubborn(ctx):
        try:
            return ctx.once("first", lambda: "first")
        finally:
            if ctx.attempt == 1:
                recorded.append(ctx.once("second", lambda: "second"))

    builder = GraphBuilder()
    builder.add_node(stubborn)
    crash_at("stubborn", "after_effect")
    run = run_graph(builder.build())

    assert run.result.results["stubborn"].output == "first"
    assert recorded == []
