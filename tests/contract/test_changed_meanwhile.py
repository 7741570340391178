"""What others change between the look of a request and its commit: it is planned again on all of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import redis

from runner.limits.concurrency import Admission, Concurrency
from runner.operations.recovery import ForkOptions, plan_fork, write_retry
from runner.records.run import Status
from runner.scheduler import changes
from runner.store.interface import Reply, Start
from runner.store.redis import requests
from runner.store.redis.keys import Keys
from runner.store.redis.store import RedisStore
from runner.store.redis.transaction import run_view
from runner.store.requests import (
    CancelRun,
    ClaimVisit,
    DrainRun,
    ExpandMap,
    ForkRun,
    StartRun,
)
from tests.contract.store.delegation import of_map
from tests.contract.store.manual_worker import ManualWorker, shape

KEYS = Keys()


@pytest.fixture
def other(redis_url, clock):
    """The same store, as another process has it."""
    store = RedisStore(redis_url, clock=clock, retention=60)
    yield store
    store.close()


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(requests, "WRITTEN", 1)


def before_a_commit(store: RedisStore, do: Callable[[], object]) -> None:
    """Do something once, when a request of a store has been planned and not written."""
    before_a_call(store, do, "commit")


def before_a_call(store: RedisStore, do: Callable[[], object], *names: str) -> None:
    """Do something once, before the last of some calls that a request of a store makes in this order."""
    transactions, todo = store._transactions, list(names)
    call = transactions._call

    def meanwhile(name, *arguments, **named):
        if todo and name == todo[0]:
            todo.pop(0)
            if not todo:
                do()
        return call(name, *arguments, **named)

    transactions._call = meanwhile


def test_a_cancel_stops_the_items_that_began_meanwhile(store, other, clock):
    """A map is expanded while a cancel is planned: its items are cancelled too, and the run ends."""
    worker = ManualWorker(other, clock)
    run_id, token = worker.begin(of_map(), node="m")
    before_a_commit(store, lambda: other.do(ExpandMap(token, ["x", "y"])))

    store.do(CancelRun(run_id, "enough"))
    store.do(DrainRun(run_id, ""))

    assert worker.statuses(run_id) == "cancelled: m cancelled, m[0] cancelled, m[1] cancelled"


@pytest.mark.full
@pytest.mark.parametrize("taken", ["m[0]", "m[29]"])
def test_a_worker_that_takes_an_item_meanwhile_disturbs_no_step_of_a_stop(
    store, other, clock, monkeypatch, taken
):
    """A step begins with the last items, as workers do with the first; control: a worker takes the last."""
    for module in (changes, run_view):
        monkeypatch.setattr(module, "DRAIN_LIMIT", 10)
    worker, plans = ManualWorker(other, clock), []
    run_id, token = worker.begin(of_map(), node="m")
    other.do(ExpandMap(token, list(range(40))))
    worker.token(run_id, "m[20]")
    other.do(CancelRun(run_id, "enough"))
    take = ClaimVisit(run_id, taken, 1, 1, "n")
    before_a_call(store, lambda: plans.append("again"), "commit", "commit")
    before_a_commit(store, lambda: other.do(take))

    reply = store.do(DrainRun(run_id, ""))

    assert plans == ([] if taken == "m[0]" else ["again"])
    while reply.word == "after":
        reply = store.do(DrainRun(run_id, reply.detail))
    assert [
        name for name, node in worker.read(run_id).nodes.items() if node.status != "cancelled"
    ] == ["m[20]"]


@pytest.mark.full
@pytest.mark.parametrize("seconds", [0, 1])
def test_a_sweep_leaves_the_steps_of_a_stop_to_its_caller(
    store, other, clock, monkeypatch, seconds
):
    """Both would conflict over the same items; control: the caller has done no step for a second."""
    for module in (changes, run_view):
        monkeypatch.setattr(module, "DRAIN_LIMIT", 10)
    worker = ManualWorker(store, clock)
    run_id, token = worker.begin(of_map(), node="m")
    store.do(ExpandMap(token, list(range(40))))
    store.do(CancelRun(run_id, "enough"))
    store.do(DrainRun(run_id, ""))
    clock.advance(seconds)
    while other.sweep().count:
        pass

    left = [str(node.status) for node in worker.read(run_id).nodes.values()].count("ready")
    assert left == (0 if seconds else 21)


@pytest.mark.full
def test_a_step_of_a_stop_reads_a_bounded_number_of_nodes(store, clock, monkeypatch):
    """Where most items have ended, a step that finds too few others continues at the next."""
    monkeypatch.setattr(run_view, "MOST_READ", 10)
    worker, steps = ManualWorker(store, clock), []
    run_id, token = worker.begin(of_map(), node="m")
    store.do(ExpandMap(token, list(range(40))))
    for number in range(1, 40):
        worker.run(run_id, f"m[{number}]")
    store.do(CancelRun(run_id, "enough"))
    reply = Reply("after")
    while reply.word == "after":
        reply = store.do(DrainRun(run_id, reply.detail))
        steps.append(reply.detail)

    assert steps == ["m[31]", "m[21]", "m[11]", "m[1]", ""]
    assert worker.read(run_id).record.status is Status.CANCELLED


@pytest.mark.full
@pytest.mark.parametrize("stops", [True, False])
@pytest.mark.usefixtures("small_pieces")
def test_a_map_of_a_run_that_stops_stores_no_further_piece(store, other, client, clock, stops):
    """Its list is written in pieces, here of 500 items; control: all of them, if the run goes on."""
    run_id, token = ManualWorker(other, clock).begin(of_map(), node="m")
    if stops:
        before_a_commit(store, lambda: other.do(CancelRun(run_id, "enough")))

    word = store.do(ExpandMap(token, list(range(1_700)))).word

    assert word == ("cancelled" if stops else "expanded")
    assert client.hlen(f"runner:{{p00}}:r:{run_id}:f") == (1 if stops else 4)


@pytest.mark.full
def test_an_item_is_measured_once_in_a_long_list(store, clock, monkeypatch):
    """The sizes of all items are added up once, not for each piece of 500."""
    measured = []

    def adding(sizes):
        sizes = list(sizes)
        measured.extend(sizes)
        return sum(sizes)

    monkeypatch.setattr(requests, "sum", adding, raising=False)
    _, token = ManualWorker(store, clock).begin(of_map(), node="m")

    store.do(ExpandMap(token, [0] * 2_000))

    assert len(measured) == 2_000


@pytest.mark.slow
@pytest.mark.parametrize("conflicts", [2, 4])
def test_a_timer_of_a_map_whose_items_end_is_deferred(store, other, client, clock, conflicts):
    """It begins the next 500 items, unless items end at each try: their ends begin others anyway."""
    worker = ManualWorker(other, clock)
    run_id, token = worker.begin(of_map(), node="m")
    other.do(ExpandMap(token, list(range(1_500))))
    call, ended = store._transactions._call, []

    def meanwhile(name, *arguments, **named):
        if name == "commit" and len(ended) < conflicts:
            ended.append(worker.run(run_id, f"m[{len(ended)}]"))
        return call(name, *arguments, **named)

    store._transactions._call = meanwhile
    store.sweep()

    assert len(ended) == conflicts
    begun = 500 + 2 * len(ended)
    assert other.read(run_id).maps["m"].next == begun + (500 if conflicts == 2 else 0)
    assert client.zscore("runner:{p00}:timers", f"map|{run_id}|m") == pytest.approx(
        clock.now + (store.lease_ms if conflicts == 4 else 0)
    )


def test_a_start_whose_repeat_was_first_finds_the_child(store, other, clock):
    """The client sends a child's start again, as the reply is lost: both name the same child."""
    worker, inner = ManualWorker(other, clock), shape("x", name="inner")
    parent, token = worker.begin("a")
    other.publish([inner])
    start = Start(f"{parent}child", "inner", inner.fingerprint, "task", parent=token)
    before_a_commit(store, lambda: other.do(StartRun(start)))

    assert store.do(StartRun(start)).run_id == start.run_id
    assert store.children(parent) == [start.run_id]


@pytest.mark.full
@pytest.mark.parametrize("meanwhile", [False, True])
def test_a_fork_takes_nothing_that_a_retry_removes_meanwhile(store, other, clock, meanwhile):
    """A retry comes between the fork's look and its commit: there is no fork. Without it there is one."""
    worker = ManualWorker(other, clock)
    run_id = worker.start(shape("a>c b>c c>z", policy="continue"))
    worker.fail(worker.token(run_id, "a"))
    worker.run(run_id, "b", "c", "z")
    planned = plan_fork(store, run_id, "z", None, ForkOptions("00new"))
    if meanwhile:
        before_a_commit(store, lambda: write_retry(other, run_id))

    assert store.do(ForkRun(planned)).word == ("moved" if meanwhile else "forked")
    assert (store.peek("00new") is None) == meanwhile


@pytest.mark.parametrize(("seconds", "status"), [(0, "accepted"), (2, "expired")])
def test_a_question_that_expires_meanwhile_takes_no_answer(
    store, other, clock, seconds, status
):
    """An answer is written before the moment of expiry or not at all, however long its request takes."""
    worker = ManualWorker(other, clock)
    _, question = worker.asking("a", expires_in=60)
    clock.advance(59)
    before_a_commit(store, lambda: clock.advance(seconds))

    assert ManualWorker(store, clock).answer(question) == [status]


@pytest.mark.parametrize("number", [b"", b"9"])
def test_an_answer_sends_no_question_back(store, other, clock, client, number):
    """Its head tells whether it is the same; control: one with another head is read again, and judged."""
    worker, said = ManualWorker(other, clock), "x" * 10_000
    run_id, question = worker.asking("a", reason=said)
    key, field = KEYS.run(run_id), f"i:{question.id.partition('.')[2]}"
    change = lambda: client.hset(key, field, number + client.hget(key, field))  # noqa: E731 - one step
    before_a_commit(store, change)
    call, sent = store._transactions._call, []

    def noting(name, *arguments, **named):
        sent.extend([arguments] * (name == "commit"))
        return call(name, *arguments, **named)

    store._transactions._call = noting
    assert ManualWorker(store, clock).answer(question) == ["accepted"]
    assert len(sent) == (2 if number else 1)
    assert not [text for arguments in sent for text in arguments if said in str(text)]


@pytest.mark.parametrize("replaces", [False, True])
def test_a_graph_that_is_replaced_between_two_looks_is_known(
    store, other, clock, redis_url, replaces
):
    """A refusal must be right at one moment: the name as it was before and the shape as it is now are not."""
    first_shape, second_shape = shape("a"), shape("a>b")
    process = RedisStore(redis_url, clock=clock)
    other.publish([first_shape])

    def replace_graph() -> None:
        other.publish([second_shape])
        with redis.Redis.from_url(
            redis_url
        ) as client:  # the retention of the old shape is over
            assert client.delete(KEYS.shape(first_shape.fingerprint)) == 1

    if replaces:
        before_a_call(process, replace_graph, "look", "look")
    start = Start("00run", "g", None, "task")

    assert process.do(StartRun(start)).word == "started"
    current_shape = second_shape if replaces else first_shape
    assert process.peek("00run").fingerprint == current_shape.fingerprint
    assert process.do(StartRun(replace(start, graph_id="h"))).word == "unknown_graph"
    process.close()


@pytest.mark.parametrize("starts", [False, True])
def test_a_graph_whose_first_run_begins_meanwhile_stays(store, other, clock, starts):
    """A start comes between the look and the commit that removes its graph; without it the graph goes."""
    worker, graph = ManualWorker(other, clock), shape("a")
    other.publish([graph])
    if starts:
        before_a_commit(store, lambda: worker.start(graph))

    assert store.remove_graph("g") == int(starts)
    assert store.graphs() == ({"g": graph.fingerprint} if starts else {})
    assert (store.topology("g", graph.fingerprint) is None) != starts


@pytest.mark.parametrize("bound", [1, 2])
def test_a_start_meanwhile_counts_for_the_bound_of_open_runs(store, other, clock, bound):
    """Another run begins between a start's plan and its commit: it takes the room of one, not that of two."""
    worker = ManualWorker(other, clock)
    graph = shape("a", admission=Admission(max_open_runs=bound))
    store.publish([graph])
    before_a_commit(store, lambda: worker.start(graph))

    reply = store.do(StartRun(Start("00late", "g", None, "task")))
    assert reply.word == ("full" if bound == 1 else "started")
    assert (store.peek("00late") is None) == (bound == 1)


@pytest.mark.parametrize("ends", [False, True])
def test_a_run_that_ends_meanwhile_lets_the_next_of_its_key_begin(store, other, clock, ends):
    """An end comes between the plan of a start, which was to wait, and its commit: then it begins at once."""
    worker = ManualWorker(other, clock)
    graph = shape("a", admission=Admission(concurrency=Concurrency(1)))
    run_id, token = worker.begin(graph)
    store.publish([graph])
    if ends:
        before_a_commit(store, lambda: worker.settle(token))

    store.do(StartRun(Start("00late", "g", None, "task")))
    assert store.peek("00late").is_queued != ends
    assert worker.statuses(run_id).startswith("completed" if ends else "executing")


@pytest.mark.parametrize("starts", [False, True])
def test_a_run_that_is_queued_meanwhile_begins_with_the_end_before_it(
    store, other, clock, starts
):
    """A start comes between the plan of an end, which saw nobody waiting, and its commit: it begins."""
    worker, late = ManualWorker(store, clock), Start("00late", "g", None, "task")
    graph = shape("a", admission=Admission(concurrency=Concurrency(1)))
    _, token = worker.begin(graph)
    if starts:
        before_a_commit(store, lambda: other.do(StartRun(late)))
    worker.settle(token)
    if not starts:
        other.do(StartRun(late))

    assert not store.peek("00late").is_queued
    assert worker.claim("00late", "a")


def test_two_ends_at_once_let_two_runs_begin(store, other, clock):
    """Each was planned with the same next run: one of them takes the one after it."""
    worker = ManualWorker(store, clock)
    graph = shape("a", admission=Admission(concurrency=Concurrency(2)))
    tokens = [worker.begin(graph)[1] for _ in range(2)]
    waiting = [worker.start(graph) for _ in range(2)]
    elsewhere = ManualWorker(other, clock)
    elsewhere.know(tokens[1].run_id, graph)
    before_a_commit(store, lambda: elsewhere.settle(tokens[1]))
    worker.settle(tokens[0])

    assert [store.peek(run_id).is_queued for run_id in waiting] == [False, False]
    assert store.peek(worker.start(graph)).is_queued
