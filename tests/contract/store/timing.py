"""The contract of time: leases, lost doorbells, deadlines, expiries, reminders."""

from __future__ import annotations

from typing import Any

import pytest

from runner.records.interrupts import InterruptStatus
from runner.store.interface import Store
from runner.store.requests import (
    AskQuestions,
    CancelRun,
    ClaimVisit,
    ParkVisit,
    RetryVisit,
    WithdrawQuestion,
)
from tests.contract.store.manual_worker import ManualWorker, failure, rung, shape

LEASE = 30


FAIL: dict[str, Any] = {"expires_in": 60, "on_expire": "fail"}


ROUTE: dict[str, Any] = {"expires_in": 60, "on_expire": {"route": "late"}, "reason": {"sum": 5}}


class TimingContract:
    """What time does, and what keeps it from doing it."""

    @pytest.mark.full
    def test_a_lost_doorbell_is_rung_again(self, worker: ManualWorker) -> None:
        """A ready visit that no worker claims is rung after a lease, then twice as long, up to 5 minutes."""
        worker.start("a")
        waits = []
        for _ in range(5):
            began = worker.clock.now
            while not worker.sweep():
                worker.clock.advance(1)
            waits.append((worker.clock.now - began) // 1000)

        assert waits == [30, 60, 120, 240, 300]

    def test_a_lost_lease_is_a_new_attempt(self, worker: ManualWorker) -> None:
        """A visit whose worker went silent is rung again as a new attempt, and keeps what was saved."""
        run_id = worker.start("a")
        lost = worker.token(run_id, "a").fence
        assert worker.sweep(after=LEASE - 0.001) == []

        assert worker.sweep(after=0.001) == ["a.1.2"]
        assert worker.token(run_id, "a", attempt=2).fence > lost

    @pytest.mark.routed
    @pytest.mark.scripts
    def test_a_renewed_lease_is_kept(self, worker: ManualWorker, store: Store) -> None:
        """A worker that renews in time keeps its visit; one that lost it learns that."""
        run_id = worker.start("a b")
        held, lost = worker.token(run_id, "a"), worker.token(run_id, "b")
        worker.clock.advance(20)
        assert store.renew([held]) == ["ok"]

        assert worker.sweep(after=20) == ["b.1.2"]
        assert store.renew([held, lost]) == ["ok", "stale"]
        assert store.renew([]) == []
        worker.settle(held)
        assert store.renew([held]) == ["stale"]

    def test_a_node_that_kills_its_workers_fails(self, worker: ManualWorker) -> None:
        """Five leases lost in a row fail the node with an error that names the cause."""
        run_id = worker.start("a")
        for attempt in range(1, 6):
            worker.claim(run_id, "a", attempt=attempt)
            worker.sweep(after=LEASE)

        assert worker.statuses(run_id) == "failed: a failed"
        assert "five times" in worker.read(run_id).entries["a", 1]["error"]["message"]
        assert worker.read(run_id).record.reason == 'node "a" failed'

    def test_a_wait_resets_the_crash_budget(self, worker: ManualWorker, store: Store) -> None:
        """Only leases lost in a row count: a node that came as far as to wait starts over."""
        run_id = worker.start(shape("a", resume_each=["a"]))
        for attempt in range(1, 5):
            worker.claim(run_id, "a", attempt=attempt)
            worker.sweep(after=LEASE)
        token = worker.token(run_id, "a", attempt=5)
        question = worker.question(token)
        store.do(ParkVisit(token, [question], None))
        worker.answer(question)
        worker.claim(run_id, "a", attempt=5)

        assert worker.sweep(after=LEASE) == ["a.1.6"]

    def test_an_unanswered_question_expires(self, worker: ManualWorker, store: Store) -> None:
        """When its time is over the node goes on and finds the question expired."""
        run_id, question = worker.asking("a", expires_in=60)
        worker.clock.advance(60)
        assert worker.answer(question) == ["expired"]

        assert worker.sweep() == ["a.1.1"]
        assert [answer.status for answer in worker.claim(run_id, "a").answers] == [
            InterruptStatus.EXPIRED
        ]
        assert worker.answer(question) == ["expired"]
        assert not worker.open()

    def test_an_answered_question_does_not_expire(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """An answer in time stops the clock of its question."""
        run_id, question = worker.asking("a", expires_in=60)
        worker.answer(question)
        token = worker.token(run_id, "a")
        worker.clock.advance(20)
        store.renew([token])
        worker.clock.advance(20)
        store.renew([token])
        worker.clock.advance(25)

        assert store.sweep().count == 0
        assert [question.status for question in worker.read(run_id).interrupts] == [
            InterruptStatus.ANSWERED
        ]

    def test_a_run_past_its_deadline_fails(self, worker: ManualWorker, store: Store) -> None:
        """A run that takes too long makes nothing ready any more and fails when what runs has ended."""
        run_id, token = worker.begin(shape("a>b", execution_timeout=90.5))
        for _ in range(4):
            worker.clock.advance(25)
            store.renew([token])
            worker.sweep()

        assert worker.statuses(run_id) == "executing: a running"
        assert worker.settle(token) == "settled"
        assert worker.statuses(run_id) == "failed: a completed"
        assert worker.read(run_id).record.reason == "execution timeout of 90.5 s reached"

    def test_a_run_in_time_has_no_deadline_left(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """The deadline of a run that has ended is forgotten."""
        run_id = worker.start(shape("a", execution_timeout=5))
        worker.run(run_id, "a")
        worker.clock.advance(10)

        assert store.sweep().count == 0

    def test_a_sweep_does_no_more_than_its_limit(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """A sweep handles so many timers and returns how many; the next ones do the rest."""
        graph = shape("a b c")
        run_id = worker.start(graph)
        for node in "abc":
            store.do(RetryVisit(worker.token(run_id, node), 0, failure(), None))

        replies = [store.sweep(limit=2) for _ in range(3)]

        assert [(reply.count, rung(reply)) for reply in replies] == [
            (2, ["a.1.2", "b.1.2"]),
            (1, ["c.1.2"]),
            (0, []),
        ]

    def test_an_expiry_can_fail_the_node(self, worker: ManualWorker, store: Store) -> None:
        """With "fail" the node fails without running again; its error has the reason, and its run stops.

        Its doorbell rings although no worker can claim it: monitors learn from it how the node ended.
        """
        run_id = worker.start("a>b")
        worker.park(run_id, "a", **FAIL)

        assert worker.sweep(after=60) == ["a.1.1"]
        assert store.do(ClaimVisit(run_id, "a", 1, 1, "late")).word == "stale"  # type: ignore[union-attr] # a reply
        assert worker.statuses(run_id) == "failed: a failed"
        snapshot = worker.read(run_id)
        error = snapshot.entries["a", 1]["error"]
        assert error["type"] == "runner.errors:InterruptExpired"
        assert "'ok?' was not answered within 60 s" in error["message"]
        assert snapshot.interrupts[0].status is InterruptStatus.EXPIRED
        assert worker.kinds(run_id)[-3:] == ["node.failed a", "run.stopping", "run.ended"]
        assert store.sweep().count == 0

    def test_an_expiry_can_lead_elsewhere(self, worker: ManualWorker, store: Store) -> None:
        """With a route the node ends, its other edges die; the node that is next learns what was asked."""
        run_id, token = worker.begin("a>b a~late a~later late>c b>c")
        interrupt = worker.question(token, **ROUTE)
        store.do(ParkVisit(token, [interrupt], None))

        assert worker.sweep(after=60) == ["a.1.1", "late.1.1"]
        assert (
            worker.statuses(run_id)
            == "executing: a completed, b skipped, late ready, later skipped"
        )
        details = {
            "interrupt_id": interrupt.id,
            "name": "ok?",
            "reason": {"sum": 5},
            "assignees": [],
        }
        claim = worker.claim(run_id, "late")
        assert list(claim.inputs) == [("a", 1, {"expired": details})]
        worker.settle(claim.token)
        worker.run(run_id, "c")
        assert worker.statuses(run_id).startswith("completed")
        assert list(worker.read(run_id).order) == ["a", "late", "c"]

    def test_an_answer_in_time_never_takes_that_edge(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """The edge is dead for a node that completes, whatever its worker settles for the others."""
        run_id, token = worker.begin("a>b a~late")
        interrupt = worker.question(token, **ROUTE)
        store.do(ParkVisit(token, [interrupt], None))
        worker.answer(interrupt)
        worker.settle(worker.token(run_id, "a"), edges="10")

        assert worker.statuses(run_id) == "executing: a completed, b ready, late skipped"
        assert store.sweep().count == 0

    def test_a_route_may_lead_back(self, worker: ManualWorker, store: Store) -> None:
        """An edge for expired questions may repeat a loop: the next visit asks once more."""
        run_id = worker.start("late>a a~late a>b")
        worker.run(run_id, "late")
        token = worker.token(run_id, "a")
        store.do(ParkVisit(token, [worker.question(token, **ROUTE)], None))

        assert worker.sweep(after=60) == ["a.1.1", "late.2.1"]
        assert next(iter(worker.claim(run_id, "late", visit=2).inputs))[0] == "a"

    @pytest.mark.parametrize("ends", ["fail", {"route": "late"}])
    def test_a_node_at_work_ends_when_it_waits(
        self, worker: ManualWorker, store: Store, ends: object
    ) -> None:
        """A running worker may finish; meanwhile answers are refused, and none is lost."""
        run_id, token = worker.begin("a>b a~late")
        interrupt = worker.question(token, expires_in=20, on_expire=ends)
        store.do(AskQuestions(token, [interrupt], None))
        assert worker.sweep(after=20) == []
        assert worker.statuses(run_id) == "executing: a running"
        assert worker.answer(interrupt) == ["expired"]
        assert store.do(ParkVisit(token, [interrupt], None)).word == "waiting"
        worker.sweep(after=LEASE)

        status = "completed" if ends != "fail" else "failed"
        assert worker.read(run_id).nodes["a"].status == status

    def test_other_questions_end_with_the_node(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """One expiry ends the node: what else it asked is withdrawn, and its workers are refused."""
        run_id = worker.start(shape("a", resume_each=["a"]))
        first, second, third = worker.park(run_id, "a", "x", "y", "z", **FAIL)
        worker.answer(first)
        worker.sweep(after=60)

        statuses = {question.id: question.status for question in worker.read(run_id).interrupts}
        assert sorted([statuses[second.id], statuses[third.id]]) == ["expired", "withdrawn"]
        assert statuses[first.id] is InterruptStatus.ANSWERED
        assert store.do(ClaimVisit(run_id, "a", 1, 1, worker.nonce())).word == "stale"  # type: ignore[union-attr] # a reply
        assert not worker.open()

    def test_a_question_asked_again_says_anew_what_time_does(
        self, worker: ManualWorker
    ) -> None:
        """A question that was withdrawn with its wait and is asked once more has only its new options."""
        run_id = worker.start(shape("a", resume_each=["a"]))
        first, _ = worker.park(run_id, "a", "x", "y", remind_every=5, **FAIL)
        worker.answer(first)
        token = worker.token(run_id, "a")
        other = worker.question(token, "z")
        worker.store.do(ParkVisit(token, [other], None))
        worker.answer(other)
        claim = worker.claim(run_id, "a")
        worker.store.do(
            ParkVisit(claim.token, [worker.numbered_question(claim, "y", expires_in=60)], None)
        )

        assert worker.sweep(after=60) == ["a.1.1"]
        assert worker.store.sweep().count == 0

    def test_reminders_are_told_until_an_answer(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """Each is an event with its count, shown on the question; an answer ends them."""
        run_id, interrupt = worker.asking("a", remind_every=10)
        for _ in range(3):
            worker.clock.advance(10)
            assert store.sweep().count == 1
        (reminded,) = worker.open()
        assert reminded.reminded == 3
        events = [event for event in store.events(run_id) if event.kind == "interrupt.reminded"]
        assert [(event.node, event.detail, event.data) for event in events] == [
            ("a", interrupt.id, {"count": count}) for count in (1, 2, 3)
        ]
        worker.answer(interrupt)
        assert worker.claim(run_id, "a").answers[0].reminded == 3
        worker.clock.advance(10)
        assert store.sweep().count == 0

    def test_reminders_come_when_they_should(self, worker: ManualWorker, store: Store) -> None:
        """Times count from the question; after an outage one reminder stands for all that were missed."""
        run_id = worker.start("a")
        worker.park(run_id, "a", remind_after=[5, 20, 25, 40])
        began, seen = worker.clock.now, []
        for seconds in (5, 10, 12, 10, 10):
            worker.clock.advance(seconds)
            if store.sweep().count != 0:
                seen.append((worker.clock.now - began) // 1000)

        assert seen == [5, 27, 47]
        assert store.sweep().count == 0

    @pytest.mark.full
    def test_reminders_end(self, worker: ManualWorker, store: Store) -> None:
        """One question reminds a hundred times, no more: a run keeps some thousands of events."""
        run_id = worker.start("a")
        worker.park(run_id, "a", remind_every=1)
        for _ in range(120):
            worker.sweep(after=1)

        assert worker.open()[0].reminded == 100

    @pytest.mark.parametrize("how", ["withdrawn", "cancelled", "expired", "settled"])
    def test_a_closed_question_does_not_remind(
        self, worker: ManualWorker, store: Store, how: str
    ) -> None:
        """Whatever closes a question ends its reminders."""
        run_id, token = worker.begin("a")
        interrupt = worker.ask(
            token, remind_every=15, expires_in=20 if how == "expired" else None
        )
        if how == "settled":
            worker.settle(token)
        else:
            store.do(ParkVisit(token, [interrupt], None))
        if how == "withdrawn":
            store.do(WithdrawQuestion(interrupt.id, "", reask=False))
        if how == "cancelled":
            store.do(CancelRun(run_id, ""))
        worker.sweep(after=20)
        worker.sweep(after=8)

        assert "interrupt.reminded a" not in worker.kinds(run_id)
        assert store.sweep().count == 0
