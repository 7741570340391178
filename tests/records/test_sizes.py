"""What is too large to store is refused, with its size, the limit and what to do."""

from __future__ import annotations

import functools

import pytest

from runner import Agent, Client, GraphBuilder, RetryPolicy, Status
from runner.errors import PayloadTooLarge, UnstorableError
from runner.operations.answers import apply_decisions
from runner.operations.message_handlers import (
    Disposition,
    IncomingMessage,
    handle_answer,
    handle_start,
)
from runner.records.interrupts import Decision
from runner.settings import Settings
from runner.store.memory.store import MemoryStore
from runner.testing import ScriptedModel
from tests.graphs import Bench, single, wired

LIMIT = 2_000
MUCH = "x" * LIMIT

small = functools.partial(MemoryStore, max_bytes=LIMIT, max_state=LIMIT)


def failure_of(graph):
    """Run a graph of which node "a" fails, and return its error's text."""
    result = Bench(graph, small).start().finish()
    assert result.results["a"].status is Status.FAILED
    assert isinstance(result.results["a"].result, PayloadTooLarge)
    return str(result.results["a"].result)


def test_a_result_that_is_too_large_fails_its_node():
    """The error says how large it is, what is allowed and what to do; a retry would not help."""
    runs = []
    graph = single(
        lambda ctx: runs.append(1) or [MUCH], retry=RetryPolicy(max_attempts=3, backoff=0)
    )

    error = failure_of(graph)

    assert (
        "the output of node 'a' has 2,004 bytes, more than RUNNER_MAX_RESULT allows (2,000)"
        in error
    )
    assert "pass a reference" in error
    assert runs == [1]


def test_a_result_at_the_limit_is_stored():
    """The limit is the largest size that is taken, counted as JSON."""
    result = Bench(single(lambda ctx: "x" * (LIMIT - 2)), small).start().finish()

    assert result.status is Status.COMPLETED


@pytest.mark.full
def test_a_checkpoint_that_is_too_large_fails_its_node():
    """What `once` remembers and what an agent keeps count, too."""
    assert "the state that node 'a' keeps" in failure_of(
        single(lambda ctx: ctx.once("k", lambda: MUCH) and 1)
    )
    builder = GraphBuilder()
    builder.add_node(Agent("a", ScriptedModel([MUCH])), "a")
    assert "bytes, more than" in failure_of(builder.build())


def test_a_question_that_is_too_large_fails_its_node():
    """A reason beyond the limit is not asked."""
    assert "the reason of interrupt 'ok?'" in failure_of(
        single(lambda ctx: ctx.interrupt("ok?", MUCH))
    )


def test_a_task_for_a_graph_inside_that_is_too_large_fails_its_node():
    """Inputs that are small each, but not together, are no task for a graph inside."""
    inner = single(lambda ctx: 1)
    graph = wired(
        {"b": lambda ctx: MUCH[:1500], "c": lambda ctx: MUCH[:1500], "a": inner}, "b a", "c a"
    ).build()

    assert "the task of the graph in node 'a'" in failure_of(graph)


@pytest.mark.parametrize(
    "given", [{"task": MUCH}, {"task": 1, "invocation_state": {"k": MUCH}}]
)
def test_what_a_run_is_started_with_may_not_be_too_large(given):
    """A task or a state beyond the limit is refused at the door, and no run comes of it."""
    bench = Bench(single(lambda ctx: 1), small)

    with pytest.raises(PayloadTooLarge, match=r"has 2,0\d\d bytes"):
        bench.engine.start("bench", **given)
    assert not bench.store.runs()


def test_too_deep_is_refused_as_too_large_is():
    """A value of more than 64 levels is refused at the door and fails a node that returns it."""
    deep = functools.reduce(lambda value, _: [value], range(70), 1)
    bench = Bench(single(lambda ctx: deep), small)

    with pytest.raises(UnstorableError, match="deeper than 64 levels"):
        bench.engine.start("bench", deep)
    failed = bench.start().finish().results["a"]
    assert "deeper than 64 levels" in str(failed.result)


def sent(body):
    return IncomingMessage("1-0", "key", body)


def test_answers_and_starts_that_are_too_large_get_a_receipt():
    """A message beyond the limit is rejected with the reason; the question stays open, no run begins."""
    bench = Bench(single(lambda ctx: ctx.interrupt("ok?")), small).start()
    (question,) = bench.finish().interrupts

    (receipt,) = apply_decisions(bench.engine, [Decision(question.id, MUCH)])
    by_door = handle_answer(
        bench.engine,
        sent(f'{{"v":1,"interrupt_id":"{question.id}","response":"{MUCH}"}}'.encode()),
    )
    start = handle_start(
        bench.engine, sent(f'{{"v":1,"graph":"bench","task":"{MUCH}"}}'.encode())
    )

    assert (receipt.status, by_door.receipt.status, start.receipt.status) == ("rejected",) * 3
    assert "the answer has 2,002 bytes" in receipt.detail
    assert (by_door.disposition, start.disposition) == (Disposition.DONE, Disposition.DEAD)
    assert "task has 2,002 bytes" in start.reason
    assert bench.result().interrupts == [question]
    assert len(bench.store.runs()) == 1


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"response_schema": {"type": "string", "description": MUCH}}, "response_schema"),
        ({"expires_in": 60, "on_expire": {"response": MUCH}}, "on_expire"),
        ({"assignees": [MUCH[:900] + str(each) for each in range(3)]}, "the list of assignees"),
    ],
)
def test_no_part_of_a_question_is_too_large(options, what):
    """What a question says besides its reason has the same limit: its node fails, and asks nothing."""
    bench = Bench(single(lambda ctx: ctx.interrupt("ok?", **options)), small).start()

    result = bench.finish()

    assert (result.status, result.interrupts) == (Status.FAILED, [])
    assert f"{what} of interrupt 'ok?' has" in str(result.results["a"].result)


def test_the_limit_is_a_setting(monkeypatch):
    """RUNNER_MAX_RESULT is in bytes; without it the limit is ten million."""
    assert Settings().max_result == 10_000_000
    monkeypatch.setenv("RUNNER_MAX_RESULT", "500")
    assert Settings().max_result == 500


def test_state_has_a_limit_of_its_own():
    """What a node keeps is bounded by RUNNER_MAX_STATE; a message, which is written once, as a result is."""
    small_state = functools.partial(MemoryStore, max_state=LIMIT)
    result = (
        Bench(single(lambda ctx: ctx.once("k", lambda: MUCH) and 1), small_state)
        .start()
        .finish()
    )
    builder = GraphBuilder()
    builder.add_node(Agent("a", ScriptedModel([MUCH])), "a")
    node_result = Bench(builder.build(), small_state).start().finish()

    assert "more than RUNNER_MAX_STATE allows (2,000)" in str(result.results["a"].result)
    assert node_result.results["a"].output == MUCH


def test_the_limits_of_states_and_runs_are_settings(monkeypatch):
    """RUNNER_MAX_STATE and RUNNER_MAX_RUN are in bytes, and reach the store of a program."""
    assert (Settings().max_state, Settings().max_run) == (2_000_000, 50_000_000)
    monkeypatch.setenv("RUNNER_MAX_STATE", "500")
    monkeypatch.setenv("RUNNER_MAX_RUN", "600")

    client = Client(redis_url="redis://127.0.0.1:1/0")

    assert (client.engine.store.max_state, client.engine.store.max_run) == (500, 600)
