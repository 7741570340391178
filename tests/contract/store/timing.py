"""The contract of time: leases, lost doorbells, deadlines, expiries, reminders."""

from __future__ import annotations

from typing import Any

import pytest

from runner.records.interrupts import InterruptStatus
from runner.store.requests import (
    ClaimVisit,
    ParkVisit,
    RetryVisit,
)
from tests.contract.store.manual_worker import failure, rung, shape
from tests.contract.store.stories import Story, stories, tell

LEASE = 30


FAIL: dict[str, Any] = {"expires_in": 60, "on_expire": "fail"}


ROUTE: dict[str, Any] = {"expires_in": 60, "on_expire": {"route": "late"}, "reason": {"sum": 5}}


STORIES = {
    "an expiry fails a node that does not run again; monitors learn of it by its doorbell": (
        "a>b",
        """
        claim a
        park a ok? expires_in=60 on_expire=fail
        sweep 60 = a.1.1
        claim a = stale
        stands = failed: a failed
        error a 'ok?' was not answered within 60 s
        statuses ok? = expired
        count node.failed a = 1
        count_due
        """,
    ),
    "a visit whose worker went silent for a lease is rung again, as a new attempt": (
        "a",
        """
        claim a
        sweep 29.999
        sweep 0.001 = a.1.2
        claim a.1.2
        """,
    ),
    "five leases lost in a row fail the node with an error that names the cause": (
        "a",
        """
        claim a
        sweep 30 = a.1.2
        claim a.1.2
        sweep 30 = a.1.3
        claim a.1.3
        sweep 30 = a.1.4
        claim a.1.4
        sweep 30 = a.1.5
        claim a.1.5
        sweep 30
        stands = failed: a failed
        error a five times
        reason = node "a" failed
        """,
    ),
    "only leases lost in a row count: a node that came as far as to wait starts over": (
        shape("a", resume_each=["a"]),
        """
        claim a
        sweep 30 = a.1.2
        claim a.1.2
        sweep 30 = a.1.3
        claim a.1.3
        sweep 30 = a.1.4
        claim a.1.4
        sweep 30 = a.1.5
        claim a.1.5
        park a.1.5
        answer a.1.5
        claim a.1.5
        sweep 30 = a.1.6
        """,
    ),
    "when the time of a question is over the node goes on, and finds it expired": (
        "a",
        """
        claim a
        park a expires_in=60
        wait 60
        answer a = expired
        sweep = a.1.1
        claim a
        answers a = a expired
        answer a = expired
        open
        """,
    ),
    "an answer in time stops the clock of its question": (
        "a",
        """
        claim a
        park a expires_in=60
        answer a
        claim a
        wait 20
        renew a = ok
        wait 20
        renew a = ok
        wait 25
        count_due
        statuses a = answered
        """,
    ),
    "a run that takes too long makes nothing ready any more, and fails when what runs has ended": (
        shape("a>b", execution_timeout=90.5),
        """
        claim a
        wait 25
        renew a = ok
        sweep
        wait 25
        renew a = ok
        sweep
        wait 25
        renew a = ok
        sweep
        wait 25
        renew a = ok
        sweep
        stands = executing: a running
        settle a
        stands = failed: a completed
        reason = execution timeout of 90.5 s reached
        """,
    ),
    "the deadline of a run that has ended is forgotten": (
        shape("a", execution_timeout=5),
        """
        run a
        wait 10
        count_due
        """,
    ),
    "an answer in time never takes the edge for an expiry, whatever the worker settles for others": (
        "a>b a~late",
        """
        claim a
        park a expires_in=60 on_expire=late
        answer a
        claim a
        settle a 10
        stands = executing: a completed, b ready, late skipped
        count_due
        """,
    ),
    "an edge for expired questions may repeat a loop: the next visit asks once more": (
        "late>a a~late a>b",
        """
        run late
        claim a
        park a expires_in=60 on_expire=late
        sweep 60 = a.1.1 late.2.1
        claim late.2
        inputs late.2 = a.1
        """,
    ),
    "a node at work ends when it waits: it fails; meanwhile answers are refused": (
        "a>b a~late",
        """
        claim a
        ask a expires_in=20 on_expire=fail
        sweep 20
        stands = executing: a running
        answer a = expired
        park a
        sweep 30 = a.1.1
        stands = failed: a failed
        """,
    ),
    "a node at work ends when it waits: it takes the edge for that; meanwhile answers are refused": (
        "a>b a~late",
        """
        claim a
        ask a expires_in=20 on_expire=late
        sweep 20
        stands = executing: a running
        answer a = expired
        park a
        sweep 30 = a.1.1 late.1.1
        stands = executing: a completed, b skipped, late ready
        """,
    ),
    "a question that is withdrawn does not remind": (
        "a",
        """
        claim a
        ask a remind_every=15
        park a
        withdraw a
        sweep 20
        sweep 8
        count interrupt.reminded a = 0
        count_due
        """,
    ),
    "a question of a cancelled run does not remind": (
        "a",
        """
        claim a
        ask a remind_every=15
        park a
        cancel
        sweep 20
        sweep 8
        count interrupt.reminded a = 0
        count_due
        """,
    ),
    "a question that expires does not remind": (
        "a",
        """
        claim a
        ask a remind_every=15 expires_in=20
        park a
        sweep 20 = a.1.1
        sweep 8
        count interrupt.reminded a = 0
        count_due
        """,
    ),
    "a question whose node has ended does not remind": (
        "a",
        """
        claim a
        ask a remind_every=15
        settle a
        sweep 20
        sweep 8
        count interrupt.reminded a = 0
        count_due
        """,
    ),
    "a question that was withdrawn with its wait and is asked once more has only its new options": (
        shape("a", resume_each=["a"]),
        """
        claim a
        park a x y remind_every=5 expires_in=60 on_expire=fail
        answer x
        claim a
        park a z
        answer z
        claim a
        park a y expires_in=60
        sweep 60 = a.1.1
        count_due
        """,
    ),
}


ROUTED = {
    "of two leases the renewed one is kept": (
        "a b",
        """
        claim a
        claim b
        wait 20
        renew a = ok
        sweep 20 = b.1.2
        renew a b = ok stale
        settle a
        renew a = stale
        """,
    ),
}
"""Stories of scripts, and of verbs that partitions route."""


class TimingContract:
    """What time does, and what keeps it from doing it."""

    @stories(STORIES)
    def test_time_does_as_its_story_says(self, worker, graph, story):
        """Leases, deadlines and expiries."""
        tell(Story(worker, graph), story)

    @pytest.mark.routed
    @pytest.mark.scripts
    @stories(ROUTED)
    def test_leases_are_renewed_as_its_story_says(self, worker, graph, story):
        """A worker that renews in time keeps its visit; one that lost it learns that."""
        tell(Story(worker, graph), story)

    @pytest.mark.full
    def test_a_lost_doorbell_is_rung_again(self, worker):
        """A ready visit that no worker claims is rung after a lease, then twice as long, up to 5 minutes."""
        worker.start("a")
        waits = []
        for _ in range(5):
            began = worker.clock.now
            while not worker.sweep():
                worker.clock.advance(1)
            waits.append((worker.clock.now - began) // 1000)

        assert waits == [30, 60, 120, 240, 300]

    def test_a_sweep_does_no_more_than_its_limit(self, worker, store):
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

    def test_an_expiry_can_lead_elsewhere(self, worker, store):
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

    def test_other_questions_end_with_the_node(self, worker, store):
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

    def test_reminders_are_told_until_an_answer(self, worker, store):
        """Each is an event with its count, shown on the question; an answer ends them."""
        run_id, interrupt = worker.asking("a", remind_every=10)
        for _ in range(3):
            worker.clock.advance(10)
            assert store.sweep().count == 1
        (reminded,) = worker.open()
        assert reminded.reminded == 3
        events = worker.events(run_id, "interrupt.reminded")
        assert [(event.node, event.detail, event.data) for event in events] == [
            ("a", interrupt.id, {"count": count}) for count in (1, 2, 3)
        ]
        worker.answer(interrupt)
        assert worker.claim(run_id, "a").answers[0].reminded == 3
        worker.clock.advance(10)
        assert store.sweep().count == 0

    def test_reminders_come_when_they_should(self, worker, store):
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
    def test_reminders_end(self, worker, store):
        """One question reminds a hundred times, no more: a run keeps some thousands of events."""
        run_id = worker.start("a")
        worker.park(run_id, "a", remind_every=1)
        for _ in range(120):
            worker.sweep(after=1)

        assert worker.open()[0].reminded == 100
