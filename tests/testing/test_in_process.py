from __future__ import annotations

import pytest

from runner import GraphBuilder, Limit, RetryPolicy, Status
from runner.errors import ResponseError, UsageError
from runner.operations.exports import read_export
from runner.testing import answer
from tests.testing.graphs import ask, graph_of, pay


def test_a_run_waits_and_is_answered(run_graph):
    """A run goes as far as it can in the call, and on in `answer`."""
    run = run_graph(graph_of(ask, pay), {"order": 1})

    assert run.status is Status.INTERRUPTED
    assert [interrupt.reason for interrupt in run.interrupts] == [{"order": 1}]
    assert run.answer("Ann").results["pay"].output == "paid for Ann"
    assert run.events[-1].kind == "run.ended"


def test_a_question_expires_when_the_clock_says_so(run_graph, clock):
    """Nothing happens a second before, and the default answer holds at the time."""
    run = run_graph(graph_of(ask, pay))
    clock.advance(3_599)
    assert run.status is Status.INTERRUPTED

    clock.advance(1)
    assert run.result.results["pay"].output == "paid for nobody"


def test_retries_come_at_their_times(run_graph, clock):
    """However far the clock is turned at once, each retry comes at its own time."""
    times = []

    def flaky(ctx):
        times.append(clock.now)
        if ctx.attempt < 4:
            raise ConnectionError("away")
        return "there"

    run = run_graph(graph_of(flaky, retry=RetryPolicy(max_attempts=4, backoff=10, jitter=0)))
    assert run.status is Status.EXECUTING
    clock.advance(3 * 86_400)

    assert run.result.results["flaky"].output == "there"
    assert [later - times[0] for later in times] == [0, 10_000, 30_000, 70_000]


def test_an_answer_is_refused_as_elsewhere(run_graph):
    """An answer that does not fit raises and leaves the question open; a missing question is named."""
    run = run_graph(
        graph_of(lambda ctx: ctx.interrupt("really?", response_schema={"type": "boolean"}))
    )
    with pytest.raises(ResponseError, match="rejected"):
        run.answer("yes")
    with pytest.raises(UsageError, match="'really\\?'"):
        run.answer(True, name="other")

    assert run.answer(True, name="really?").status is Status.COMPLETED


def test_answers_fit_graphs_too():
    """`answer` writes what a graph takes, and two answers are one set."""

    def both(ctx):
        return [ctx.interrupt("b", response_schema={"type": "integer"}), ctx.interrupt("a")]

    graph = graph_of(ask, pay)
    result = graph(answer(graph({}), "Ann"))
    assert result.results["pay"].output == "paid for Ann"

    graph = graph_of(both)
    with pytest.raises(UsageError, match="named 'c'"):
        answer(graph({}), 1, "c")


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
    assert read_export(run.store, run.id).tags == {"team": "red"}
