from __future__ import annotations

import json
from itertools import pairwise

import pytest

from runner import GraphBuilder, RetryPolicy, Status
from runner.errors import ResponseError, UsageError
from runner.testing import answer, replay


def ask(ctx):
    return ctx.interrupt("approve", reason=ctx.task, expires_in=3_600, on_expire={"response": "nobody"})


def graph_of(*functions, **options):
    builder = GraphBuilder()
    for function in functions:
        builder.add_node(function, **options)
    for before, after in pairwise(functions):
        builder.add_edge(before.__name__, after.__name__)
    return builder.build()


def pay(ctx):
    return f"paid for {ctx.inputs['ask']}"


def test_a_run_waits_and_is_answered(run_graph):
    """A run goes as far as it can in the call, and on in `answer`."""
    run = run_graph(graph_of(ask, pay), {"order": 1})

    assert run.status is Status.INTERRUPTED
    assert [asked.reason for asked in run.interrupts] == [{"order": 1}]
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


def test_an_answer_is_refused_as_elsewhere(run_graph):
    """An answer that does not fit raises and leaves the question open; a missing question is named."""
    run = run_graph(graph_of(lambda ctx: ctx.interrupt("really?", response_schema={"type": "boolean"})))
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
def test_a_worker_dies_at_each_point_and_the_run_ends_well(run_graph, crash_at, point, effects, starts):
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
    crash_at("pay", "start", times=5)
    run = run_graph(_one("pay"))

    assert run.status is Status.FAILED
    assert len(run.store.dead) == 1


def _one(name):
    builder = GraphBuilder()
    builder.add_node(lambda ctx: "paid", name)
    return builder.build()


def test_a_crash_point_must_exist(crash_at):
    """A misspelled point is no silent success."""
    with pytest.raises(UsageError, match="after_effect"):
        crash_at("pay", "after_lunch")


def test_an_unchanged_graph_goes_on_with_an_old_run(run_graph):
    """Where nothing of the graph's shape has changed, a waiting run goes on."""
    found = replay(run_graph(graph_of(ask, pay)).export(), graph_of(ask, pay))

    assert found.goes_on, str(found)
    assert found.nodes == []


def test_a_changed_node_is_named_with_its_question(run_graph):
    """A node that waits and got another edge needs a migration; what is elsewhere does not."""

    def look(ctx):
        return 1

    def log(ctx):
        return 2

    export = run_graph(graph_of(look, ask, pay)).export()
    found = replay(export, graph_of(look, ask, log, pay))

    assert not found.goes_on
    assert found.nodes == ["ask", "pay"]
    assert found.questions == ["approve"]
    assert "needs migration: ask has changed" in str(found)
    assert "pay is gone" in str(replay(export, graph_of(look, ask)))


def test_what_is_behind_a_run_may_change(run_graph):
    """Nodes that have ended are not compared."""

    def build(first):
        builder = GraphBuilder()
        builder.add_node(first, "first", version=first.__name__)
        builder.add_node(ask)
        builder.add_edge("first", "ask")
        return builder.build()

    def old(ctx):
        return 1

    def new(ctx):
        return 2

    assert replay(run_graph(build(old)).export(), build(new)).goes_on


def test_a_graph_inside_is_compared_too(run_graph):
    """A question of a graph inside is held when that graph has changed."""

    def around(*functions):
        builder = GraphBuilder()
        builder.add_node(graph_of(*functions), "inside")
        return builder.build()

    export = run_graph(around(ask, pay)).export()

    assert replay(export, around(ask, pay)).goes_on
    assert replay(export, around(ask)).questions == ["approve"]


def test_an_export_is_read_from_a_file(run_graph, tmp_path):
    """A file of `runner runs export` will do; anything else is refused in words."""
    file = tmp_path / "run.json"
    file.write_text(json.dumps(run_graph(graph_of(ask)).export()))
    assert replay(file, graph_of(ask)).goes_on

    file.write_text("hello")
    with pytest.raises(UsageError, match="no JSON"):
        replay(file, graph_of(ask))
    with pytest.raises(UsageError, match="no document"):
        replay({}, graph_of(ask))
