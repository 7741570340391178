"""The size of a run in Redis: what counts, what is refused, and what never is."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import redis

from bench import graphs
from runner import Agent, GraphBuilder, RetryPolicy, tool
from runner.definition.model import AFTER_GRAPH, MapSpec, Topology
from runner.errors import PayloadTooLarge
from runner.operations import recovery
from runner.operations.answers import apply_decisions
from runner.records import codec
from runner.records.checkpoints import Saved
from runner.records.interrupts import Decision
from runner.records.run import NodeRecord, Records, Status, VisitEntry
from runner.store.encoding import FUNCTION_ENTRY, question_document
from runner.store.interface import Fork, Settlement, Start
from runner.store.redis.keys import Keys
from runner.store.redis.store import RedisStore
from runner.store.requests import (
    AskQuestions,
    EmitEvent,
    ExpandMap,
    ForkRun,
    HandOver,
    ParkVisit,
    ReportResult,
    RetryVisit,
    SaveCheckpoint,
    SettleVisit,
    StartRun,
)
from runner.testing import ManualClock, ScriptedModel
from tests.contract.store.manual_worker import ManualWorker, failure, saved, shape
from tests.graphs import Bench, single, wired

MUCH = "x" * 3_000
NEARLY = "x" * 2_000
LARGE = "x" * 70_000

RUN, VISIT, MESSAGE = 1_024, 300, 50
"""Bytes that each counts beside its values."""


def length(*values: Any) -> int:
    """Count the bytes of values as they are stored."""
    return sum(len(codec.dump_json(value)) for value in values)


def left(entry: VisitEntry, *values: Any) -> int:
    """Count the bytes of a function's entry and of values."""
    return length(entry, *values) - len(FUNCTION_ENTRY)


class RunSizes:
    """A run has a size, with all runs inside it, and a largest one."""

    def size(self, worker: ManualWorker, run_id: str) -> int:
        """Read how large a run is."""
        return worker.read(run_id).size

    def wide(
        self, worker: ManualWorker, store: RedisStore, graph: Topology | None = None
    ) -> str:
        """Begin a run that has room for little more than it has."""
        run_id = worker.start(graph or shape("a b"))
        store.max_run = self.size(worker, run_id) + 1_000
        return run_id

    def test_a_run_counts_what_it_was_given_and_what_nodes_leave(self, worker):
        """Task, state, tags, outputs and entries count, at the length that is stored."""
        run_id = worker.start(
            shape("a>b"), {"t": 1}, invocation_state={"g": 2}, tags={"k": "v"}
        )
        given = length({"t": 1}, {"g": 2}, {"k": "v"})
        assert self.size(worker, run_id) == RUN + given

        worker.settle(worker.token(run_id, "a"), {"paid": 5}, "1")

        entry = worker.read(run_id).entries["a", 1]
        assert self.size(worker, run_id) == RUN + VISIT + given + left(entry, {"paid": 5})

    def test_what_a_node_keeps_counts_as_it_is_now(self, worker, store):
        """A document that is written anew counts once; messages that are cut off count no more."""
        run_id = worker.start("a")
        before, token = self.size(worker, run_id), worker.token(run_id, "a")
        store.do(SaveCheckpoint(token, Saved({"v": 1, "step": 1}, 0, [MUCH, "two", "three"])))
        store.do(SaveCheckpoint(token, Saved({"v": 1, "step": 10}, 1, ["other"])))

        assert self.size(worker, run_id) - before == 2 * MESSAGE + length(
            {"v": 1, "step": 10}, MUCH, "other"
        )

    def test_questions_and_answers_count(self, worker, store):
        """A question counts once, though it is asked again; so does its answer, and what withdraws it."""
        run_id = worker.start("a b")
        before, token = self.size(worker, run_id), worker.token(run_id, "a")
        question = worker.question(token, reason=MUCH)
        store.do(AskQuestions(token, [question], None))
        asked = self.size(worker, run_id) - before
        assert asked == len(question_document(question))
        store.do(ParkVisit(token, [question], None))
        assert self.size(worker, run_id) - before == asked

        worker.answer(question, response="yes")
        said = length({"response": "yes", "responder": None, "idempotency_key": None})
        assert self.size(worker, run_id) - before == asked + said

    def test_items_and_reports_count(self, worker, store):
        """The list of a map counts when it is there, and what another system reports."""
        spec = MapSpec("function", None, 1, stops=False)
        run_id = worker.start(shape("m b", maps={"m": spec}))
        before, token = self.size(worker, run_id), worker.token(run_id, "m")
        store.do(ExpandMap(token, ["one", MUCH]))
        assert self.size(worker, run_id) - before == length("one", MUCH)

        other = worker.token(run_id, "b")
        store.do(HandOver(other, "work"))
        store.do(ReportResult(run_id, "b", 1, "work", {"result": 1}))
        store.do(ReportResult(run_id, "b", 1, "work", {"result": 1}))
        assert self.size(worker, run_id) - before == length("one", MUCH, {"result": 1})

    def test_a_large_value_counts_once(self, worker):
        """A value that goes through many nodes lies apart, and its bytes count once."""
        run_id = worker.start("a>b b>c")
        before = self.size(worker, run_id)
        for node in ("a", "b", "c"):
            worker.settle(worker.token(run_id, node), LARGE)

        assert (
            length(LARGE)
            < self.size(worker, run_id) - before
            < 3 * VISIT + length(LARGE) + 1_000
        )

    def test_a_run_inside_counts_at_its_root(self, worker, store):
        """A child run has no size of its own: it counts at the outermost run, and is bounded there."""
        run_id = worker.start("a")
        child = worker.start(shape("x>y", name="inner"), MUCH, parent=worker.token(run_id, "a"))
        before = self.size(worker, run_id)
        worker.settle(worker.token(child, "x"), MUCH)

        entry = worker.read(child).entries["x", 1]
        assert self.size(worker, run_id) == before + VISIT + length(MUCH) + length(entry) - len(
            FUNCTION_ENTRY
        )
        assert self.size(worker, child) == 0
        store.max_run = before + 4_000
        with pytest.raises(PayloadTooLarge, match="RUNNER_MAX_RUN"):
            worker.settle(worker.token(child, "y"), MUCH)

    def test_a_result_without_room_is_refused_whole(self, worker, store):
        """The error says how large the run is; the node still runs, and can fail for it."""
        run_id = self.wide(worker, store, shape("a>b"))
        size, token = self.size(worker, run_id), worker.token(run_id, "a")

        with pytest.raises(
            PayloadTooLarge, match=rf"the run has {size:,} bytes .* are beyond RUNNER_MAX_RUN"
        ):
            worker.settle(token, MUCH)

        assert worker.statuses(run_id) == "executing: a running"
        assert self.size(worker, run_id) == size
        assert worker.fail(token) == "settled"
        assert worker.statuses(run_id) == "failed: a failed"

    @pytest.mark.full
    @pytest.mark.parametrize("verb", ["save", "ask", "park", "expand", "large"])
    def test_whatever_a_node_writes_needs_room(self, worker, store, verb):
        """A checkpoint, a question, a list, a large value: each is refused whole, and the node runs on."""
        spec = MapSpec("function", None, 1, stops=False)
        run_id = self.wide(worker, store, shape("m b", maps={"m": spec}))
        size, token = self.size(worker, run_id), worker.token(run_id, "m")
        question = worker.question(token, reason=MUCH)

        calls: dict[str, Callable[[], object]] = {
            "save": lambda: store.do(SaveCheckpoint(token, saved(1, MUCH))),
            "ask": lambda: store.do(AskQuestions(token, [question], None)),
            "park": lambda: store.do(ParkVisit(token, [question], saved(1))),
            "expand": lambda: store.do(ExpandMap(token, [MUCH])),
            "large": lambda: worker.settle(token, LARGE),
        }
        with pytest.raises(PayloadTooLarge):
            calls[verb]()

        assert (worker.statuses(run_id), self.size(worker, run_id)) == (
            "executing: b ready, m running",
            size,
        )
        assert worker.read(run_id).interrupts == ()
        assert worker.settle(token, "x" * 500) == "settled"

    def test_what_replaces_something_larger_needs_no_room(self, worker, store):
        """A node of a full run may still keep less than it did."""
        run_id = self.wide(worker, store)
        token = worker.token(run_id, "a")
        store.do(SaveCheckpoint(token, Saved({"v": 1, "much": "x" * 900}, 0)))
        store.max_run = 1

        assert (
            store.do(SaveCheckpoint(token, Saved({"v": 1, "much": "x" * 800}, 0))).word
            == "saved"
        )
        with pytest.raises(PayloadTooLarge):
            store.do(SaveCheckpoint(token, Saved({"v": 1, "much": "x" * 801}, 0)))

    def test_an_answer_always_has_room(self, worker, store):
        """Whoever answers a question of a full run is heard, and the node goes on."""
        run_id = self.wide(worker, store)
        (question,) = worker.park(run_id, "a")
        store.max_run = 1

        assert worker.answer(question, response=MUCH) == ["accepted"]
        assert worker.statuses(run_id) == "executing: a ready, b ready"
        assert worker.claim(run_id, "a").answers[0].response == MUCH

    def test_what_ends_work_always_has_room(self, worker, store):
        """A failure, a retry, and what still comes while a run stops are written, however full it is."""
        run_id = self.wide(worker, store, shape("a b c"))
        tokens = {node: worker.token(run_id, node) for node in "abc"}
        store.max_run = 1

        entry, kept = failure(), saved(1, MUCH)
        assert store.do(RetryVisit(tokens["a"], 700, entry, kept)).word == "retrying"
        assert (
            store.do(
                SettleVisit(tokens["b"], Settlement(Status.FAILED, "", None, entry, kept), "n")
            ).word
            == "settled"
        )
        assert worker.settle(tokens["c"], MUCH) == "settled"
        assert worker.statuses(run_id) == "failed: a cancelled, b failed, c completed"

    def test_the_event_after_a_full_run_has_room(self, worker, store):
        """A run that has done all its work does not fail for the hooks after it."""
        run_id = worker.start(shape(f"a {AFTER_GRAPH}", entries=["a"]))
        worker.run(run_id, "a")
        store.max_run = 1

        worker.run(run_id, AFTER_GRAPH)
        assert worker.read(run_id).record.status is Status.COMPLETED

    @pytest.mark.full
    def test_long_events_push_older_ones_out(self, worker, store):
        """A run keeps fewer events when they tell much; short ones push none out, nor does one long one."""
        run_id = worker.start("a")
        child = worker.start(shape("x", name="inner"), parent=worker.token(run_id, "a"))
        for number in range(1_100):
            store.do(EmitEvent(child, "progress", "x", 1, number))
        store.max_run = 10_000
        store.do(EmitEvent(child, "progress", "x", 1, MUCH))
        assert len(store.events(run_id, limit=5_000)) > 1_100

        store.do(EmitEvent(child, "progress", "x", 1, MUCH))

        for each, node in ((child, "x"), (run_id, "a/x")):
            events = store.events(each, limit=5_000)
            assert len(events) == 1_000
            assert (events[-1].node, events[-1].data, events[0].data) == (node, MUCH, 102)
            assert int(events[-1].position) - int(events[0].position) == 999

    def test_a_start_needs_room(self, worker, store):
        """A task that is too large for any run begins none; a child run needs the room of its family."""
        run_id = self.wide(worker, store, shape("a"))
        token, inner = worker.token(run_id, "a"), shape("x", name="inner")
        store.publish([inner])

        for start in (
            Start("00new", "inner", inner.fingerprint, MUCH),
            Start("00new", "inner", inner.fingerprint, MUCH, parent=token),
        ):
            with pytest.raises(PayloadTooLarge, match="RUNNER_MAX_RUN"):
                store.do(StartRun(start))
        assert store.read("00new") is None
        assert worker.statuses(run_id) == "executing: a running"

    def test_a_fork_counts_what_it_copies(self, worker, store):
        """What a fork takes over is its own; one that has no room for it does not begin."""
        graph = shape("a>b")
        run_id = worker.start(graph)
        worker.settle(worker.token(run_id, "a"), MUCH)
        records = Records(
            {
                "a": NodeRecord(Status.COMPLETED, 1, 1, edges="1"),
                "b": NodeRecord(Status.READY, 1, 1),
            },
            {},
            {},
        )

        def fork(name: str) -> Fork:
            start = Start(name, graph.graph_id, graph.fingerprint, "task")
            return Fork(start, run_id, records, {("a", 1): -1}, visit=("b", 1), input="other")

        store.do(ForkRun(fork("00fork")))
        entry = worker.read(run_id).entries["a", 1]
        assert self.size(worker, "00fork") == RUN + VISIT + left(
            entry, "task", None, {}, "other", MUCH
        )
        store.max_run = RUN + 2_000
        with pytest.raises(PayloadTooLarge):
            store.do(ForkRun(fork("00more")))
        assert (store.read("00more"), len(store.runs())) == (None, 2)


class TestRunSizes(RunSizes):
    @pytest.fixture
    def store(self, redis_url):
        store = RedisStore(redis_url, clock=ManualClock(), lease=30, push=False)
        yield store
        store.close()

    @pytest.fixture
    def worker(self, store):
        return ManualWorker(store)


@pytest.fixture
def roomy(redis_url):
    """Give what opens stores in which a run may have so many bytes."""
    stores = []

    def bounded(limit):
        def opened(clock):
            stores.append(RedisStore(redis_url, clock=clock, push=False, max_run=limit))
            return stores[-1]

        return opened

    yield bounded
    for store in stores:
        store.close()


def test_a_run_that_would_be_too_large_fails_the_node_that_fills_it(roomy):
    """The error says how large the run is, what is allowed and what to do; what was there before stays."""
    graph = wired({"a": lambda ctx: NEARLY, "b": lambda ctx: NEARLY}, "a b").build()

    result = Bench(graph, roomy(RUN + VISIT + 3_000)).start().finish()

    assert (result.status, result.results["a"].output) == (Status.FAILED, NEARLY)
    error = result.results["b"].result
    assert isinstance(error, PayloadTooLarge)
    assert "bytes with the runs inside it; 2,3" in str(error)
    assert "beyond RUNNER_MAX_RUN (4,324)" in str(error)
    assert "pass references" in str(error)


def test_a_loop_without_end_ends_when_its_run_is_full(roomy):
    """A run that grows at every round fails with the reason, and not the store."""
    builder = wired({"a": lambda ctx: NEARLY}, "a a").set_max_node_executions(1_000)

    result = Bench(builder.build(), roomy(RUN + 20_000)).start().finish()

    assert "RUNNER_MAX_RUN" in str(result.results["a"].result)
    assert 5 < len(result.execution_order) < 10


def test_a_retry_policy_does_not_repeat_for_want_of_room(roomy):
    """A node whose result has no room would do its work again for nothing."""
    runs = []
    retry = RetryPolicy(max_attempts=3, backoff=0)

    Bench(
        single(lambda ctx: runs.append(1) or NEARLY, retry=retry), roomy(RUN + 1_000)
    ).start().finish()

    assert runs == [1]


def test_a_failed_run_goes_on_when_the_limit_is_raised(roomy):
    """Nothing of a full run is lost: with more room a retry ends it."""
    bench = Bench(single(lambda ctx: NEARLY), roomy(RUN + 1_000)).start()
    assert bench.finish().status is Status.FAILED

    bench.store.max_run = 50_000
    assert recovery.retry(bench.engine, bench.run_id) == ["a"]

    assert bench.finish().results["a"].output == NEARLY


@tool
def look_up(number: int) -> str:
    """Find an order."""
    return f"order {number} is on its way to its customer"


CALLS = [
    {"toolUse": {"toolUseId": f"t{n}", "name": "look_up", "input": {"number": n}}}
    for n in range(20)
]

NAMES = [f"n{number}" for number in range(100)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nodes", "edges", "task"),
    [
        (dict.fromkeys(NAMES[:3], lambda ctx: 1), ["n0 n1", "n1 n2"], "t"),
        (dict.fromkeys(NAMES, lambda ctx: 1), [f"{a} {b}" for a, b in pairwise(NAMES)], "t"),
        ({"a": Agent("a", ScriptedModel([*CALLS, "done"]), [look_up])}, [], "t"),
        ({"a": lambda ctx: ctx.interrupt("approve", {"order": 1042, "amount": 120})}, [], "t"),
        ({"a": wired({"x": lambda ctx: 1, "y": lambda ctx: 2}, "x y").build()}, [], "t"),
        ({"map": lambda ctx: ctx.task}, [], list(range(500))),
    ],
    ids=["three", "chain", "agent", "question", "nested", "map"],
)
def test_a_run_counts_about_what_it_takes(roomy, redis_url, nodes, edges, task):
    """The size of a run is between half and twice of the memory that the server says its keys have."""
    builder = GraphBuilder()
    for name, node in nodes.items():
        builder.add_map(node, name) if name == "map" else builder.add_node(node, name)
    for edge in edges:
        builder.add_edge(*edge.split())
    bench = Bench(builder.build(), roomy(50_000_000)).start(task)
    bench.finish_all()

    with redis.Redis.from_url(redis_url) as client:
        memory = sum(
            client.memory_usage(key, samples=0) or 0 for key in client.scan_iter("*:r:*")
        )
    assert 0.5 < bench.store.read(bench.run_id).size / memory < 2


def test_a_run_with_a_question_stays_small(roomy, redis_url):
    """What is stored of a run while it waits for one of two people, and after its end, does not grow."""
    bench = Bench(graphs.FACTORIES["request"](), roomy(50_000_000)).start(None)

    def stored():
        key = Keys().run(bench.run_id)
        with redis.Redis.from_url(redis_url) as client:
            texts = [
                *itertools.chain(*client.hgetall(key).items()),
                *client.lrange(f"{key}:e", 0, -1),
            ]
        return sum(map(len, texts))

    bench.finish()
    waiting = stored()
    (question,) = bench.store.open_interrupts().items
    answer = Decision(question.id, {"approved": True}, responder="ana@example.com")
    assert [receipt.status for receipt in apply_decisions(bench.engine, [answer])] == [
        "accepted"
    ]
    bench.finish()
    assert waiting < 590
    assert stored() < 1_120
