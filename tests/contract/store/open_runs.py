"""The contract of open runs: how many of a graph there may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from runner.definition.model import Topology
from runner.errors import TooManyRuns, UsageError
from runner.limits.concurrency import Admission, Concurrency, Debounce
from runner.limits.fairness import Fairness
from runner.limits.limit import Limit
from runner.operations.recovery import ForkOptions, plan_fork, write_retry
from runner.records.run import Status
from runner.store.interface import Reply, Start
from runner.store.requests import CancelRun, ForkRun, StartRun
from tests.contract.store.manual_worker import ManualWorker, rung, shape
from tests.contract.store.stories import Story, stories, tell

TWO = shape("a", admission=Admission(max_open_runs=2))


def start(worker: ManualWorker, graph: str, run_id: str) -> Reply:
    """Start a run, which may be refused."""
    return worker.store.do(StartRun(Start(run_id, graph, None, "task")))


class OpenRunsContract:
    """Bounds of open runs."""

    def test_a_start_over_the_bound_is_refused(self, worker, store):
        """It says how many runs are open, and leaves nothing; a run that ends makes room for one."""
        one, _ = worker.start(TWO), worker.start(TWO)
        refused = start(worker, "g", "00three")
        assert refused.word == "full"
        assert "graph 'g' has 2 open runs, and its max_open_runs allows 2" in refused.detail
        assert not refused.doorbells
        assert store.peek("00three") is None

        worker.run(one, "a")
        assert [start(worker, "g", f"00{name}").word for name in ("three", "four")] == [
            "started",
            "full",
        ]

    def test_a_run_that_waits_is_open_and_one_inside_another_does_not_count(
        self, worker, store
    ):
        """A run counts until it has ended, and a graph without a bound has any number."""
        run_id, _ = worker.asking(TWO)
        assert worker.statuses(run_id) == "interrupted: a waiting"
        for _ in range(3):
            _, token = worker.begin(shape("a", name="outer"))
            worker.start(
                shape("a", admission=Admission(max_open_runs=2), name="g"), parent=token
            )

        assert start(worker, "g", "00two").word == "full"
        assert start(worker, "outer", "00more").word == "started"

    def test_a_fork_is_a_start_and_a_retry_is_none(self, worker, store):
        """A fork over the bound is refused; a retry continues a run that was admitted, and counts again."""
        graph = shape("a", admission=Admission(max_open_runs=1))
        run_id, token = worker.begin(graph)
        worker.fail(token)
        second = worker.start(graph)
        planned = plan_fork(store, run_id, "a", None, ForkOptions("00fork"))
        assert store.do(ForkRun(planned)).word == "full"

        write_retry(store, run_id)
        record = store.peek(run_id)
        assert record is not None
        assert record.status is Status.EXECUTING
        worker.run(second, "a")
        assert start(worker, "g", "00three").word == "full"


def keyed(at_most: int = 1, **options: Any) -> Topology:
    """Build a graph of one node, of which so many runs may be open for each account."""
    concurrency = Concurrency(at_most, by="tag:account", **options)
    return shape("a>b", admission=Admission(concurrency=concurrency))


class Starts(Story):
    """Runs of keys, each at its address "name/", and later than the one before."""

    def __init__(self, worker: ManualWorker, graph: Topology) -> None:
        super().__init__(worker)
        self.allowed = graph
        self.store.publish([graph])

    def start(self, name: str, account: str = "7") -> str:
        """Start a run under an account; "-" is none."""
        self.wait("1")
        assert self.join(name, account) == name
        return (
            "begun"
            if name in [bell.run_id for bell in self.worker.reply.doorbells]
            else "queued"
        )

    def join(self, name: str, account: str = "7") -> str:
        """Start a run with its name as the task; return the run that there is then."""
        tags = {"account": account} if account != "-" else {}
        self.do(StartRun(Start(name, "g", None, name, tags=tags)))
        self.runs[f"{name}/"] = name
        self.worker.know(name, self.allowed)
        return self.worker.reply.run_id

    def allow(self, at_most: str) -> str:
        """Deploy the graph with another bound."""
        self.allowed = keyed(int(at_most))
        self.store.publish([self.allowed])
        return ""

    def happened(self, way: str) -> str:
        return ", ".join(self.worker.kinds(self.runs[way]))


STORIES = {
    "runs of a key begin one after another, and say for what they wait; other keys don't wait": (
        keyed(),
        """
        start one = begun
        start two = queued
        start three = queued
        stands two/ = executing:
        reason two/ = waits for account=7
        happened two/ = run.started, run.queued
        start other 8 = begun
        run one/a
        stands two/ = executing:
        run one/b
        begins = two/
        reason two/
        run two/a
        stands three/ = executing:
        run two/b
        begins = three/
        run three/a three/b
        stands three/ = completed: a completed, b completed
        start four = begun
        """,
    ),
    "runs without the tag are one key": (
        keyed(),
        """
        start a - = begun
        start b = begun
        start c - = queued
        """,
    ),
    "a start replaces the open run, and begins when the node that still runs has ended": (
        keyed(when_full="replace"),
        """
        start one = begun
        claim one/a
        start two = queued
        reason one/ = replaced by two
        start three = queued
        stands two/ = cancelled:
        stands three/ = executing:
        settle one/a
        stands one/ = cancelled: a completed
        stands three/ = executing: a ready
        start four = begun
        stands three/ = cancelled: a cancelled
        stands four/ = executing: a ready
        """,
    ),
    "a run that waits for a person counts where the key says so": (
        keyed(while_waiting=True),
        """
        start one = begun
        start two = queued
        claim one/a
        park one/a
        stands two/ = executing:
        answer one/a
        start three = queued
        run one/a one/b two/a
        """,
    ),
    "the next begins while a run waits for a person; the answered run counts again": (
        keyed(while_waiting=False),
        """
        start one = begun
        start two = queued
        claim one/a
        park one/a
        stands two/ = executing: a ready
        answer one/a
        run two/a two/b
        start three = queued
        run one/a one/b three/a
        """,
    ),
    "where a deploy raises the bound, the next start lets those begin first that were there before": (
        keyed(),
        """
        start a = begun
        start b = queued
        start c = queued
        start d = queued
        allow 4
        start e = queued
        begins = b/ c/
        start f = queued
        begins = d/
        run a/a a/b b/a b/b c/a c/b d/a d/b e/a e/b f/a f/b
        start g = begun
        """,
    ),
    "several runs of a key may be open; each that ends lets the next begin": (
        keyed(2),
        """
        start a = begun
        start b = begun
        start c = queued
        start d = queued
        run a/a a/b
        stands c/ = executing: a ready
        stands d/ = executing:
        allow 4
        start g = begun
        """,
    ),
}


class KeyContract:
    """Open runs of a key."""

    @stories(STORIES)
    def test_a_key_lets_runs_begin_as_its_story_says(self, worker, graph, story):
        """Runs that wait for their key, and what lets them begin."""
        tell(Starts(worker, graph), story)

    @pytest.fixture
    def of_key(self, worker: ManualWorker) -> Callable[..., Reply]:
        """Start runs of a graph under an account: each with its name, later than the one before."""

        def start_of(name: str, account: str = "7", **options: Any) -> Reply:
            worker.clock.advance(1)
            tags = {"account": account} if account else {}
            start = Start(f"00{name}", "g", None, "task", tags=tags, **options)
            return worker.store.do(StartRun(start))

        return start_of

    def publish(self, worker: ManualWorker, graph: Topology, *names: str) -> None:
        """Publish a graph, and have the worker know its runs."""
        worker.store.publish([graph])
        for name in names:
            worker.know(f"00{name}", graph)

    def test_a_run_that_waits_to_begin_can_be_cancelled(self, worker, store, of_key):
        """It ends at once, and the next begins in its stead; a retry of it finds room or is refused."""
        self.publish(worker, keyed(), "one", "two", "three")
        for name in ("one", "two", "three"):
            of_key(name)
        assert store.do(CancelRun("00two", "enough")).word == "cancelled"
        assert worker.statuses("00two") == "cancelled: "
        with pytest.raises(TooManyRuns, match="account=7 has 1 open run, 00one"):
            write_retry(store, "00two")

        worker.run("00one", "a", "b")
        worker.run("00three", "a", "b")
        write_retry(store, "00two")
        worker.run("00two", "a", "b")
        assert worker.statuses("00two") == "completed: a completed, b completed"

    def test_a_refused_start_leaves_nothing(self, worker, store, of_key):
        """A start is refused while the key has no room; so is a fork, whatever the start would do."""
        self.publish(worker, keyed(when_full="refuse"), "one", "two")
        of_key("one")
        refused = of_key("two")
        assert (refused.word, store.peek("00two")) == ("full", None)
        assert "account=7 has 1 open run, 00one" in refused.detail
        worker.run("00one", "a", "b")
        assert of_key("two").word == "started"

        planned = plan_fork(store, "00one", "b", None, ForkOptions("00fork"))
        assert store.do(ForkRun(planned)).word == "full"
        worker.run("00two", "a", "b")
        with pytest.raises(UsageError, match="keeps the key of its run, account=7"):
            plan_fork(store, "00one", "b", None, ForkOptions("00fork", {"account": "8"}))
        assert store.do(ForkRun(planned)).word == "forked"
        assert of_key("three").word == "full"

    def test_a_skipped_start_returns_the_open_run(self, worker, store, of_key):
        """As with an idempotency key, which returns it again after its end."""
        self.publish(worker, keyed(when_full="skip"), "one")
        of_key("one")
        for key in (None, "k"):
            skipped = of_key("two", idempotency_key=key)
            assert (skipped.word, skipped.run_id, store.peek("00two")) == (
                "exists",
                "00one",
                None,
            )
        worker.run("00one", "a", "b")

        assert of_key("two", idempotency_key="k").run_id == "00one"
        assert of_key("two").word == "started"

    @pytest.mark.parametrize(
        "rules",
        [
            {"admission": Admission(concurrency=Concurrency(2, by="tag:account"))},
            {"admission": Admission(debounce=Debounce(9, by="tag:account"))},
            {"fairness": Fairness("tag:account")},
            {"limits": {"b": [Limit("one", concurrency=1, by="tag:account")]}},
        ],
        ids=["concurrency", "debounce", "fairness", "limit"],
    )
    def test_a_tag_that_is_too_long_for_a_key_is_refused(self, worker, of_key, rules):
        """By bytes, not letters, and nothing is started, nor inside another run; control: 200 bytes."""
        graph = shape("a>b", **rules)
        self.publish(worker, graph)
        longest = "é" * 100
        with pytest.raises(UsageError, match="201 bytes, over 200; nothing was started"):
            of_key("one", longest + "e")
        assert worker.store.peek("00one") is None
        assert of_key("one", longest).word == "started"

        for tag in (longest, longest + "e"):
            run_id, token = worker.begin(shape("a", name="outer"), tags={"account": tag})
            start = Start(f"{run_id}x", "g", None, "task", parent=token)
            if tag == longest:
                assert worker.store.do(StartRun(start)).word == "started"
            else:
                with pytest.raises(UsageError, match="nothing was started"):
                    worker.store.do(StartRun(start))

    @pytest.mark.full
    @pytest.mark.parametrize("account", ["\0", "x\0key:o:g:account=7", "\n", "|:ü"])
    def test_any_text_is_a_key(self, worker, of_key, account):
        """Runs of it begin one after another, and count nothing else; control: another key has room."""
        self.publish(worker, keyed(), "one", "two")
        assert rung(of_key("other", "7")) == ["a.1.1"]
        assert [rung(of_key(name, account)) for name in ("one", "two")] == [["a.1.1"], []]
        worker.run("00one", "a", "b")
        worker.run("00two", "a", "b")


DEBOUNCED = shape(
    "a", admission=Admission(debounce=Debounce(30, by="tag:account", at_most=100))
)


ONE_DEBOUNCED = shape(
    "a",
    admission=Admission(
        concurrency=Concurrency(1, by="tag:account"), debounce=Debounce(30, by="tag:account")
    ),
)

DEBOUNCE_STORIES = {
    "a run begins some time after the last of several starts, with the task of that": (
        DEBOUNCED,
        """
        join one = one
        wait 20
        join two = one
        wait 20
        join three = one
        join other 8 = other
        stands one/ = executing:
        reason one/ = waits for other starts of account=7
        sweep 29
        sweep 2 = a.1.1 a.1.1
        claim one/a
        task one/a = three
        join four = four
        """,
    ),
    "however often it is started, a run begins at most so long after the first start": (
        DEBOUNCED,
        """
        join start = start
        wait 19
        join 1 = start
        wait 19
        join 2 = start
        wait 19
        join 3 = start
        wait 19
        join 4 = start
        wait 19
        join 5 = start
        sweep
        sweep 5 = a.1.1
        """,
    ),
    "a cancelled run never begins, and the next start of its key is another run": (
        DEBOUNCED,
        """
        join one = one
        cancel one/
        wait 1
        join two = two
        sweep 31 = a.1.1
        stands one/ = cancelled:
        stands two/ = executing: a ready
        """,
    ),
    "one run of a key at a time also counts for debounced runs": (
        ONE_DEBOUNCED,
        """
        join one = one
        sweep 31 = a.1.1
        join two = two
        sweep 31 = a.1.1
        reason two/ = waits for account=7
        run one/a
        stands two/ = executing: a ready
        """,
    ),
}


class DebounceContract:
    """Runs that begin some time after the last of several starts."""

    @stories(DEBOUNCE_STORIES)
    def test_a_debounced_run_begins_as_its_story_says(self, worker, graph, story):
        """When it begins, and with which task."""
        tell(Starts(worker, graph), story)

    @pytest.fixture
    def after(self, worker: ManualWorker) -> Callable[..., str]:
        """Start a run of a key with its name as the task, some seconds later; return the run that it gets."""

        def start_of(seconds: float, name: str, account: str = "7", **options: Any) -> str:
            worker.clock.advance(seconds)
            start = Start(f"00{name}", "g", None, name, tags={"account": account}, **options)
            reply = worker.store.do(StartRun(start))
            assert reply.word in {"started", "exists"}
            assert rung(reply) == []
            return reply.run_id

        return start_of

    def test_a_repeated_start_of_a_debounced_run_changes_nothing_later(self, worker, after):
        """The idempotency key of a start that has replaced the task names the run, also after its end."""
        worker.store.publish([DEBOUNCED])
        after(0, "one", idempotency_key="first")
        after(1, "two", idempotency_key="second")
        worker.know("00one", DEBOUNCED)
        assert worker.sweep(after=31) == ["a.1.1"]
        worker.run("00one", "a")

        assert {after(0, "again", idempotency_key=key) for key in ("first", "second")} == {
            "00one"
        }

    def test_all_who_start_a_debounced_run_have_asked_for_it(self, worker, after, store):
        """A rule that excludes the requester misses none whose task may run; control: one who repeats."""
        store.publish([DEBOUNCED])
        for name, person in (("one", "ana"), ("two", "ben"), ("three", "ben"), ("four", "ana")):
            after(1, name, requester={"principal": person, "on_behalf_of": ["cleo"]})
        assert store.requester("00one") == {
            "principal": "ana",
            "on_behalf_of": ["cleo", "ben"],
        }
        worker.know("00one", DEBOUNCED)
        worker.sweep(after=31)
        claim = worker.claim("00one", "a")
        worker.ask(claim.token)
        assert claim.task == "four"

    @pytest.mark.full
    @pytest.mark.parametrize(
        ("first", "second", "accepted"),
        [
            ({"principal": "ana"}, None, False),
            ({"principal": "ana"}, {"principal": "ben", "body": {}}, False),
            ({"principal": "ana", "body": {}}, {"principal": "ben"}, False),
            ({"principal": "ana", "body": {}}, {"principal": "ana"}, False),
            (None, {"principal": "ben", "body": {}}, False),
            (None, {"principal": "ben"}, True),
            ({"principal": "ana", "body": {}}, {"principal": "ana", "body": {}}, True),
        ],
    )
    def test_a_start_whose_requester_can_not_be_stored_is_refused(
        self,
        worker,
        store,
        first,
        second,
        accepted,
    ):
        """An unknown one, another, or one less sure, changes nothing; control: the one who has signed."""
        store.publish([DEBOUNCED])

        def start_of(name: str, requester: Mapping[str, Any] | None) -> Reply:
            start = Start(f"00{name}", "g", None, name, requester=requester)
            return worker.store.do(StartRun(start))

        assert start_of("one", first).word == "started"
        reply = start_of("two", second)
        assert (reply.word, worker.read("00one").task) == (
            ("exists", "two") if accepted else ("full", "one")
        )
        assert accepted or "this requester" in reply.detail

    def test_a_debounced_run_overtakes_none_that_wait(self, worker, after):
        """Where a deploy raises the bound, its time lets those begin that were there before."""

        def publish(at_most: int) -> None:
            debounce = Debounce(30, by="tag:account")
            one = Concurrency(at_most, by="tag:account")
            graph = shape("a", admission=Admission(concurrency=one, debounce=debounce))
            worker.store.publish([graph])

        publish(1)
        for name in ("one", "two", "three"):
            after(0, name)
            worker.sweep(after=31)
        publish(3)
        after(0, "four")
        worker.sweep(after=31)
        begun = [
            bool(worker.read(f"00{name}").nodes) for name in ("one", "two", "three", "four")
        ]
        assert begun == [True, True, True, False]
