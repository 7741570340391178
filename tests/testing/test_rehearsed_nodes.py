from __future__ import annotations

import pytest

from examples.refunds.graph import refunds
from runner import GraphBuilder, Limit, Status
from runner.testing import CrashPoint


@pytest.mark.parametrize("point", list(CrashPoint))
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

    assert run_graph(builder.build(), [5, 6]).result.results["double"].output == [[5, 1], [6, 2]]


@pytest.mark.anyio
async def test_async_nodes_and_async_tests(run_graph, crash_at):
    """A test that is async itself runs graphs of async nodes."""
    builder = GraphBuilder()

    async def effect():
        return "done"

    async def node(ctx):
        return await ctx.once("effect", effect)

    builder.add_node(node)
    crash_at("node", "after_effect")

    assert run_graph(builder.build()).result.results["node"].output == "done"


def test_a_rate_is_kept_by_the_clock_of_the_test(run_graph, clock):
    """What a rate puts off begins when the clock has come that far, and not before."""
    builder = GraphBuilder()
    builder.add_map(lambda ctx: clock.now, "call", limits=[Limit("calls", rate=1, per=60)])
    run = run_graph(builder.build(), [1, 2, 3])
    assert run.status is Status.EXECUTING

    clock.advance(3_600)
    first, *later = run.result.results["call"].output
    assert [at - first for at in later] == [60_000, 120_000]


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


def test_cancelling_ends_a_run(run_graph):
    """A waiting run that is cancelled has no open question left."""
    builder = GraphBuilder()
    builder.add_node(lambda ctx: ctx.interrupt("well?"), "ask")
    run = run_graph(builder.build())

    assert run.cancel("enough").status is Status.CANCELLED
    assert run.interrupts == []


def test_a_run_has_its_state_and_its_tags(run_graph):
    """What a run is started with besides its task is there in a test, too."""
    builder = GraphBuilder()
    builder.add_node(lambda ctx: ctx.invocation_state["user"], "who")
    run = run_graph(builder.build(), invocation_state={"user": "Ann"}, tags={"team": "red"})

    assert run.result.results["who"].output == "Ann"
    assert run.export()["tags"] == {"team": "red"}
