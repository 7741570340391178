"""What is too large to store is refused, with its size, the limit and what to do."""

from __future__ import annotations

import functools

import pytest

from runner import Agent, Client, GraphBuilder, RetryPolicy, Status
from runner.errors import PayloadTooLarge, UnstorableError
from runner.intake import Fate, Sent, judge_answer, judge_start
from runner.interrupts import Answer
from runner.settings import Settings
from runner.store.memory import MemoryStore
from runner.testing import ScriptedModel
from tests.core.graphs import Bench, single, wired

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
    graph = single(lambda ctx: runs.append(1) or [MUCH], retry=RetryPolicy(max_attempts=3, backoff=0))

    error = failure_of(graph)

    assert "the output of node 'a' has 2,004 bytes, more than RUNNER_MAX_RESULT allows (2,000)" in error
    assert "pass a reference" in error
    assert runs == [1]


def test_a_result_at_the_limit_is_stored():
    """The limit is the largest size that is taken, counted as JSON."""
    result = Bench(single(lambda ctx: "x" * (LIMIT - 2)), small).start().finish()

    assert result.status is Status.COMPLETED


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
    assert "the reason of interrupt 'ok?'" in failure_of(single(lambda ctx: ctx.interrupt("ok?", MUCH)))


def test_a_task_for_a_graph_inside_that_is_too_large_fails_its_node():
    """Inputs that are small each, but not together, are no task for a graph inside."""
    inner = single(lambda ctx: 1)
    graph = wired(
        {"b": lambda ctx: MUCH[:1500], "c": lambda ctx: MUCH[:1500], "a": inner}, "b a", "c a"
    ).build()

    assert "the task of the graph in node 'a'" in failure_of(graph)


@pytest.mark.parametrize("given", [{"task": MUCH}, {"task": 1, "invocation_state": {"k": MUCH}}])
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
    return Sent("1-0", "key", body, lambda: 0)


def test_answers_and_starts_that_are_too_large_get_a_receipt():
    """A message beyond the limit is rejected with the reason; the question stays open, no run begins."""
    bench = Bench(single(lambda ctx: ctx.interrupt("ok?")), small).start()
    (question,) = bench.finish().interrupts

    (receipt,) = bench.engine.answer([Answer(question.id, MUCH)])
    by_door = judge_answer(
        bench.engine, sent(f'{{"v":1,"interrupt_id":"{question.id}","response":"{MUCH}"}}'.encode()), 0
    )
    start = judge_start(bench.engine, sent(f'{{"v":1,"graph":"bench","task":"{MUCH}"}}'.encode()))

    assert (receipt.status, by_door.receipt.status, start.receipt.status) == ("rejected",) * 3
    assert "the answer has 2,002 bytes" in receipt.detail
    assert (by_door.fate, start.fate) == (Fate.DONE, Fate.DEAD)
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


@pytest.mark.parametrize("given", ["inf", "1e12", "nan", "-1"])
@pytest.mark.parametrize(
    "name", ["LEASE", "SWEEP_INTERVAL", "RETENTION", "SHUTDOWN_GRACE", "EARLY_ANSWER"], ids=str.lower
)
def test_times_are_set_within_a_century(monkeypatch, name, given):
    """A store can't write longer times: who sets one is told at once, not when a run ends."""
    monkeypatch.setenv(f"RUNNER_{name}", given)

    with pytest.raises(ValueError, match=name.lower()):
        Settings()


def test_the_limit_is_a_setting(monkeypatch):
    """RUNNER_MAX_RESULT is in bytes; without it the limit is ten million."""
    assert Settings().max_result == 10_000_000
    monkeypatch.setenv("RUNNER_MAX_RESULT", "500")
    assert Settings().max_result == 500


def roomy(limit):
    """Open stores in which a run may have so many bytes."""
    return functools.partial(MemoryStore, max_run=limit)


def test_a_run_that_would_be_too_large_fails_the_node_that_fills_it():
    """The error says how large the run is, what is allowed and what to do; what was there before stays."""
    graph = wired({"a": lambda ctx: MUCH, "b": lambda ctx: MUCH}, "a b").build()

    result = Bench(graph, roomy(3_000)).start().finish()

    assert (result.status, result.results["a"].output) == (Status.FAILED, MUCH)
    error = result.results["b"].result
    assert isinstance(error, PayloadTooLarge)
    assert "bytes with the runs inside it; 2,0" in str(error)
    assert "beyond RUNNER_MAX_RUN (3,000)" in str(error)
    assert "pass references" in str(error)


def test_a_loop_without_end_ends_when_its_run_is_full():
    """A run that grows at every round fails with the reason, and not the store."""
    builder = wired({"a": lambda ctx: MUCH}, "a a").set_max_node_executions(1_000)

    result = Bench(builder.build(), roomy(20_000)).start().finish()

    assert "RUNNER_MAX_RUN" in str(result.results["a"].result)
    assert 5 < len(result.execution_order) < 10


def test_graphs_inside_count_in_their_outermost_run():
    """A graph inside fails when all runs around and inside it have as much as one may."""
    inner = wired({"x": lambda ctx: MUCH, "y": lambda ctx: MUCH}, "x y").build()
    graph = wired({"a": lambda ctx: MUCH, "b": inner}, "a b").build()

    result = Bench(graph, roomy(7_000)).start().finish()

    assert result.status is Status.FAILED
    assert "y: PayloadTooLarge: the run has" in str(result.results["b"].result)


def test_whatever_a_node_writes_counts():
    """A checkpoint, a question, a list of items and what an agent says: each fails its node without room."""
    agent = GraphBuilder()
    agent.add_node(Agent("a", ScriptedModel([MUCH])), "a")
    fanned = GraphBuilder()
    fanned.add_map(lambda ctx: 1, "a", over=lambda ctx: [MUCH])
    graphs = {
        "once": single(lambda ctx: ctx.once("k", lambda: MUCH) and 1),
        "question": single(lambda ctx: ctx.interrupt("ok?", MUCH)),
        "agent": agent.build(),
        "map": fanned.build(),
    }
    for what, graph in graphs.items():
        result = Bench(graph, roomy(1_500)).start().finish()
        assert isinstance(result.results["a"].result, PayloadTooLarge), what
        assert "RUNNER_MAX_RUN" in str(result.results["a"].result), what


def test_a_retry_policy_does_not_repeat_for_want_of_room():
    """A node whose result has no room would do its work again for nothing."""
    runs = []
    retry = RetryPolicy(max_attempts=3, backoff=0)

    Bench(single(lambda ctx: runs.append(1) or MUCH, retry=retry), roomy(1_000)).start().finish()

    assert runs == [1]


def test_an_answer_to_a_full_run_is_heard():
    """The run goes on as far as it can, ends with the reason, and the question keeps its answer."""
    bench = Bench(single(lambda ctx: ctx.interrupt("ok?") and MUCH), roomy(2_000)).start()
    (question,) = bench.finish().interrupts

    (receipt,) = bench.engine.answer([Answer(question.id, "y" * 1_900)])
    result = bench.finish()

    assert receipt.status == "accepted"
    assert result.status is Status.FAILED
    assert "RUNNER_MAX_RUN" in str(result.results["a"].result)
    assert bench.store.interrupts([question.id])[0].response == "y" * 1_900


def test_a_failed_run_goes_on_when_the_limit_is_raised():
    """Nothing of a full run is lost: with more room a retry ends it."""
    bench = Bench(single(lambda ctx: MUCH), roomy(1_000)).start()
    assert bench.finish().status is Status.FAILED

    bench.store.max_run = 50_000
    assert bench.engine.retry(bench.run_id) == ["a"]

    assert bench.finish().results["a"].output == MUCH


def test_a_start_beyond_the_size_of_a_run_is_refused():
    """A task and a state that are small enough each, but not together, begin no run."""
    bench = Bench(single(lambda ctx: 1), roomy(3_000))

    with pytest.raises(PayloadTooLarge, match=r"RUNNER_MAX_RUN \(3,000\)"):
        bench.engine.start("bench", MUCH, invocation_state={"k": MUCH})
    assert not bench.store.runs()


def test_state_has_a_limit_of_its_own():
    """What a node keeps is bounded by RUNNER_MAX_STATE; a message, which is written once, as a result is."""
    small_state = functools.partial(MemoryStore, max_state=LIMIT)
    kept = Bench(single(lambda ctx: ctx.once("k", lambda: MUCH) and 1), small_state).start().finish()
    builder = GraphBuilder()
    builder.add_node(Agent("a", ScriptedModel([MUCH])), "a")
    said = Bench(builder.build(), small_state).start().finish()

    assert "more than RUNNER_MAX_STATE allows (2,000)" in str(kept.results["a"].result)
    assert said.results["a"].output == MUCH


def test_the_limits_of_states_and_runs_are_settings(monkeypatch):
    """RUNNER_MAX_STATE and RUNNER_MAX_RUN are in bytes, and reach the store of a program."""
    assert (Settings().max_state, Settings().max_run) == (2_000_000, 50_000_000)
    monkeypatch.setenv("RUNNER_MAX_STATE", "500")
    monkeypatch.setenv("RUNNER_MAX_RUN", "600")

    client = Client(redis_url="redis://127.0.0.1:1/0")

    assert (client.engine.store.max_state, client.engine.store.max_run) == (500, 600)
