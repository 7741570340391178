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
from runner.store.interface import Reply, Settlement, Start, Store
from runner.store.requests import CancelRun, ForkRun, SettleVisit, StartRun
from tests.contract.store.manual_worker import ManualWorker, rung, shape

TWO = shape("a", admission=Admission(max_open_runs=2))


def start(worker: ManualWorker, graph: str, run_id: str) -> Reply:
    """Start a run, which may be refused."""
    return worker.store.do(StartRun(Start(run_id, graph, None, "task")))


class OpenRunsContract:
    """Bounds of open runs."""

    def test_a_start_over_the_bound_is_refused(
        self, worker: ManualWorker, store: Store
    ) -> None:
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
        self, worker: ManualWorker, store: Store
    ) -> None:
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

    def test_a_fork_is_a_start_and_a_retry_is_none(
        self, worker: ManualWorker, store: Store
    ) -> None:
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


class KeyContract:
    """Open runs of a key."""

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

    def test_runs_of_a_key_begin_one_after_another(
        self, worker: ManualWorker, store: Store, of_key: Callable[..., Reply]
    ) -> None:
        """A run that waits is executing and says for what; those of other keys don't wait for it."""
        self.publish(worker, keyed(), "one", "two", "three", "other")
        replies = [of_key(name) for name in ("one", "two", "three")]
        assert [reply.word for reply in replies] == ["started"] * 3
        assert [rung(reply) for reply in replies] == [["a.1.1"], [], []]
        waiting = worker.read("00two").record
        assert (waiting.status, waiting.reason) == (Status.EXECUTING, "waits for account=7")
        assert worker.kinds("00two") == ["run.started", "run.queued"]
        assert rung(of_key("other", "8")) == ["a.1.1"]

        for name, after in (("one", "two"), ("two", "three")):
            worker.run(f"00{name}", "a")
            assert worker.read(f"00{after}").nodes == {}
            doorbells = store.do(
                SettleVisit(
                    worker.token(f"00{name}", "b"),
                    Settlement(Status.COMPLETED, "", None, {"v": 1}),
                    worker.nonce(),
                )
            ).doorbells
            assert [bell.run_id for bell in doorbells] == [f"00{after}"]
            assert worker.read(f"00{after}").record.reason == ""
        worker.run("00three", "a", "b")
        assert worker.statuses("00three") == "completed: a completed, b completed"
        assert rung(of_key("four")) == ["a.1.1"]

    def test_runs_without_the_tag_are_one_key(
        self, worker: ManualWorker, of_key: Callable[..., Reply]
    ) -> None:
        """A run that names no account waits for another that names none."""
        self.publish(worker, keyed())
        assert [rung(of_key(name, account)) for name, account in (("a", ""), ("b", "7"))] == [
            ["a.1.1"]
        ] * 2
        assert rung(of_key("c", "")) == []

    def test_a_run_that_waits_to_begin_can_be_cancelled(
        self, worker: ManualWorker, store: Store, of_key: Callable[..., Reply]
    ) -> None:
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

    def test_a_refused_start_leaves_nothing(
        self, worker: ManualWorker, store: Store, of_key: Callable[..., Reply]
    ) -> None:
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
        with pytest.raises(UsageError, match="has the key of its run, account=7"):
            plan_fork(store, "00one", "b", None, ForkOptions("00fork", {"account": "8"}))
        assert store.do(ForkRun(planned)).word == "forked"
        assert of_key("three").word == "full"

    def test_a_skipped_start_returns_the_open_run(
        self, worker: ManualWorker, store: Store, of_key: Callable[..., Reply]
    ) -> None:
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

    def test_a_start_replaces_the_open_run(
        self, worker: ManualWorker, store: Store, of_key: Callable[..., Reply]
    ) -> None:
        """The open run is cancelled; the new one begins when the node that still runs has ended."""
        self.publish(worker, keyed(when_full="replace"), "one", "two", "three")
        of_key("one")
        token = worker.token("00one", "a")
        assert of_key("two").word == "started"
        one = worker.read("00one").record
        assert (one.stopping, one.reason) == ("cancelled", "replaced by 00two")
        assert of_key("three").word == "started"
        assert worker.statuses("00two") == "cancelled: "
        assert worker.read("00three").nodes == {}

        worker.settle(token)
        assert worker.statuses("00one").startswith("cancelled: ")
        assert worker.statuses("00three") == "executing: a ready"
        of_key("four")
        assert worker.statuses("00three") == "cancelled: a cancelled"
        assert worker.statuses("00four") == "executing: a ready"

    @pytest.mark.full
    @pytest.mark.parametrize("while_waiting", [True, False])
    def test_a_run_that_waits_for_a_person_counts_if_the_key_says_so(
        self, worker: ManualWorker, of_key: Callable[..., Reply], while_waiting: bool
    ) -> None:
        """Otherwise the next begins meanwhile, and the answered run counts again as it continues."""
        self.publish(worker, keyed(while_waiting=while_waiting), "one", "two", "three")
        of_key("one")
        of_key("two")
        (question,) = worker.park("00one", "a")
        assert bool(worker.read("00two").nodes) == (not while_waiting)

        worker.answer(question)
        if not while_waiting:
            worker.run("00two", "a", "b")
        of_key("three")
        assert worker.read("00three").nodes == {}
        worker.run("00one", "a", "b")
        worker.run("00two" if while_waiting else "00three", "a")

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
    def test_a_tag_that_is_too_long_for_a_key_is_refused(
        self, worker: ManualWorker, of_key: Callable[..., Reply], rules: dict[str, Any]
    ) -> None:
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

    def test_no_start_overtakes_those_that_wait(
        self, worker: ManualWorker, of_key: Callable[..., Reply]
    ) -> None:
        """Where a deploy raises the bound, the next start lets those begin first that were there before."""
        self.publish(worker, keyed(), *"abcdefg")
        assert [bool(rung(of_key(name))) for name in "abcd"] == [True, False, False, False]

        self.publish(worker, keyed(4))
        bells = of_key("e").doorbells
        assert [bell.run_id for bell in bells] == ["00b", "00c"]
        assert [bell.run_id for bell in of_key("f").doorbells] == ["00d"]
        assert [bool(worker.read(f"00{name}").nodes) for name in "ef"] == [False, False]
        for name in "abcdef":
            worker.run(f"00{name}", "a", "b")
        assert rung(of_key("g")) == ["a.1.1"]

    @pytest.mark.full
    @pytest.mark.parametrize("account", ["\0", "x\0key:o:g:account=7", "\n", "|:ü"])
    def test_any_text_is_a_key(
        self, worker: ManualWorker, of_key: Callable[..., Reply], account: str
    ) -> None:
        """Runs of it begin one after another, and count nothing else; control: another key has room."""
        self.publish(worker, keyed(), "one", "two")
        assert rung(of_key("other", "7")) == ["a.1.1"]
        assert [rung(of_key(name, account)) for name in ("one", "two")] == [["a.1.1"], []]
        worker.run("00one", "a", "b")
        worker.run("00two", "a", "b")

    def test_several_runs_of_a_key_may_be_open(
        self, worker: ManualWorker, of_key: Callable[..., Reply]
    ) -> None:
        """Each that ends lets the next begin; where a deploy raises the bound, two begin with an end."""
        self.publish(worker, keyed(2), *"abcdef")
        begun = [bool(rung(of_key(name))) for name in "abcdef"]
        assert begun == [True, True, False, False, False, False]
        worker.run("00a", "a", "b")
        assert [bool(worker.read(f"00{name}").nodes) for name in "cd"] == [True, False]

        self.publish(worker, keyed(4))
        assert bool(rung(of_key("g"))) is True


DEBOUNCED = shape(
    "a", admission=Admission(debounce=Debounce(30, by="tag:account", at_most=100))
)


class DebounceContract:
    """Runs that begin some time after the last of several starts."""

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

    def test_a_run_begins_after_the_last_of_several_starts(
        self, worker: ManualWorker, after: Callable[..., str]
    ) -> None:
        """With the task of the last one; a start after that is another run, and so is one of another key."""
        worker.store.publish([DEBOUNCED])
        runs = [after(0, "one"), after(20, "two"), after(20, "three"), after(0, "other", "8")]
        assert runs == ["00one", "00one", "00one", "00other"]
        record = worker.read("00one").record
        assert (record.status, record.reason) == (
            Status.EXECUTING,
            "waits for other starts of account=7",
        )

        assert worker.sweep(after=29) == []
        assert worker.sweep(after=2) == ["a.1.1", "a.1.1"]
        assert worker.claim("00one", "a").task == "three"
        assert after(0, "four") == "00four"

    def test_a_debounce_ends_in_time(
        self, worker: ManualWorker, after: Callable[..., str]
    ) -> None:
        """However often it is started, a run begins at most so long after the first start."""
        worker.store.publish([DEBOUNCED])
        assert {after(19, f"start{number}") for number in range(6)} == {"00start0"}
        assert worker.sweep() == []
        assert worker.sweep(after=5) == ["a.1.1"]

    def test_a_repeated_start_of_a_debounced_run_changes_nothing_later(
        self, worker: ManualWorker, after: Callable[..., str]
    ) -> None:
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

    def test_a_debounced_run_can_be_cancelled(
        self, worker: ManualWorker, after: Callable[..., str], store: Store
    ) -> None:
        """Then it never begins, and the next start of its key is another run."""
        store.publish([DEBOUNCED])
        after(0, "one")
        assert store.do(CancelRun("00one", "enough")).word == "cancelled"
        assert after(1, "two") == "00two"

        assert worker.sweep(after=31) == ["a.1.1"]
        assert worker.statuses("00one") == "cancelled: "
        assert worker.statuses("00two") == "executing: a ready"

    def test_a_run_whose_debounce_is_over_waits_for_the_open_one(
        self, worker: ManualWorker, after: Callable[..., str]
    ) -> None:
        """One at a time also counts for debounced runs."""
        debounce, one = Debounce(30, by="tag:account"), Concurrency(1, by="tag:account")
        graph = shape("a", admission=Admission(concurrency=one, debounce=debounce))
        worker.store.publish([graph])
        worker.know("00one", graph)
        after(0, "one")
        assert worker.sweep(after=31) == ["a.1.1"]
        after(0, "two")
        assert worker.sweep(after=31) == ["a.1.1"]  # of the first, once more
        assert worker.read("00two").record.reason == "waits for account=7"

        worker.run("00one", "a")
        assert worker.statuses("00two") == "executing: a ready"

    def test_all_who_start_a_debounced_run_have_asked_for_it(
        self, worker: ManualWorker, after: Callable[..., str], store: Store
    ) -> None:
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
        worker: ManualWorker,
        store: Store,
        first: Mapping[str, Any] | None,
        second: Mapping[str, Any] | None,
        accepted: bool,
    ) -> None:
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

    def test_a_debounced_run_overtakes_none_that_wait(
        self, worker: ManualWorker, after: Callable[..., str]
    ) -> None:
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
