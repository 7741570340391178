"""The contract of decisions that can be taken back: what follows from them waits for `undo` seconds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.approvals.judgement import Evidence, judge
from runner.approvals.rules import Rule
from runner.errors import UsageError
from tests.contract.store.stories import stories, tell
from tests.contract.store.voting import TWO, Votes, Voting, edited, signed, voting

UNDO = replace(TWO, undo=10)

ALONE = replace(UNDO, need=1)


STORIES = {
    "a cancelled run has no decision": (
        ALONE,
        """
        approve ana = accepted
        cancel
        approve ben = superseded
        count_due
        wait 10
        count_due
        """,
    ),
    "from the end of its seconds on a decision stays, also if no sweep has come yet": (
        ALONE,
        """
        approve ana = accepted
        wait 10
        take_back ana = duplicate
        sweep = a.1.1
        take_back ana = duplicate
        decided = approve
        """,
    ),
    "an edit that decides is taken back; the votes that it voided count again": (
        replace(UNDO, weights={"role:cfo": 2, "user:cfo": 2}),
        """
        approve ana
        edit cfo 5 = accepted
        take_back cfo
        approve ana = duplicate
        approve ben = accepted
        sweep 10 = a.1.1
        decided = approve
        numbers = 1 3
        """,
    ),
    "a vote counts again when the edit of the same person that voided it is taken back": (
        replace(ALONE, veto=2),
        """
        reject ana
        edit ana 5 = accepted
        take_back ana
        approve ana = duplicate
        approve ben = accepted
        sweep 10 = a.1.1
        decided = approve
        """,
    ),
    "a vote that was lent to somebody is with them again when they take back their own decision": (
        replace(ALONE, delegate="anyone"),
        """
        delegate ana ben
        approve ben = accepted
        take_back ben
        approve ana = forbidden
        """,
    ),
    "a veto is taken back, and the question is where it was before": (
        replace(UNDO, veto=1),
        """
        approve ana
        reject ben = accepted
        take_back ben
        approve cid = accepted
        sweep 10 = a.1.1
        decided = approve
        """,
    ),
    "the last stage is taken back, and the question is where it was before": (
        Rule(undo=10, stages=[replace(TWO, need=1), replace(TWO, need=1)]),
        """
        approve ana
        approve ben = accepted
        take_back ben
        approve cid = accepted
        sweep 10 = a.1.1
        decided = approve
        """,
    ),
}


def judged(people: Voting) -> str:
    """Count the votes again, as a worker does before the effect; return the decision."""
    votes = people.store.votes(people.question.id)
    return judge(people.question, people.now, Evidence(votes)).decision


class UndoingContract:
    """Decisions by a rule with `undo`."""

    @stories(STORIES)
    def test_a_decision_is_taken_back_as_its_story_says(self, worker, graph, story):
        """Who decided may take it back for some seconds."""
        tell(Votes(worker, graph), story)

    @pytest.mark.scripts
    def test_a_decision_waits_for_its_undo(self, worker, store):
        """Until then nothing follows and nobody else decides; then the node continues, once."""
        people = voting(worker, UNDO)
        run_id = people.question.run_id

        assert people.words(("ana",), ("ben",), ("cid",)) == [
            "counted",
            "accepted",
            "duplicate",
        ]
        assert people.vote("dan").detail == "already decided by ben: approve"
        assert (people.now.is_open, worker.sweep(after=9)) == (True, [])
        assert "interrupt.answered a" not in worker.kinds(run_id)
        assert worker.sweep(after=1) == ["a.1.1"]
        worker.sweep(after=100)

        assert (people.now.decision, people.now.responder) == ("approve", "ben")
        assert store.standings([people.question.id])[0].pending is None
        assert worker.kinds(run_id).count("interrupt.answered a") == 1
        assert judged(people) == "approve"

    @pytest.mark.scripts
    def test_who_decided_takes_it_back(self, worker, store):
        """Only they may, and the other votes stay; the next vote decides, and gets all the seconds again."""
        people = voting(worker, UNDO)

        assert people.words(("ana",), ("ben",)) == ["counted", "accepted"]
        assert people.act("ana", "withdraw_vote") == "duplicate"
        assert people.act("cid", "claim", ttl=60) == "duplicate"
        assert people.act("cid", "comment", comment="why?") == "accepted"
        worker.sweep(after=9)
        assert people.act("ben", "withdraw_vote") == "withdrawn_vote"

        assert worker.sweep(after=100) == []
        assert people.now.is_open
        (standing,) = store.standings([people.question.id])
        assert list(standing.tally.effects.values()) == [1]
        assert people.words(("cid",)) == ["accepted"]
        assert (worker.sweep(after=9), worker.sweep(after=1)) == ([], ["a.1.1"])
        assert [vote["by"] for vote in store.votes(people.question.id)] == [
            "human:|ana",
            "human:|cid",
        ]
        assert judged(people) == "approve"

    def test_a_taken_back_vote_may_come_again(self, worker):
        """As another message of the same person; the first message gets its receipt, and decides nothing."""
        people = voting(worker, ALONE)
        first = signed(worker, "first")

        assert people.vote("ana", body=first, idempotency_key="1").status == "accepted"
        assert people.act("ana", "withdraw_vote") == "withdrawn_vote"
        assert people.vote("ana", body=first, idempotency_key="1").status == "withdrawn_vote"
        assert people.vote("ana", body=first, idempotency_key="2").status == "duplicate"
        assert worker.sweep(after=10) == []
        assert people.vote("ana", "reject", comment="no", idempotency_key="3").status == (
            "accepted"
        )
        assert worker.sweep(after=10) == ["a.1.1"]
        assert people.now.decision == "reject"

    def test_a_taken_back_vote_is_not_counted_again_by_its_key(self, worker):
        """Not even if an earlier vote of the same person counts again then."""
        people = voting(worker, replace(ALONE, veto=2))

        assert people.vote("ana", "reject", idempotency_key="1").status == "counted"
        assert people.vote("ana", "edit", edited("5"), idempotency_key="2").status == "accepted"
        assert people.act("ana", "withdraw_vote") == "withdrawn_vote"
        assert (
            people.vote("ana", "edit", edited("5"), idempotency_key="2").status
            == "withdrawn_vote"
        )
        assert worker.sweep(after=10) == []

    def test_no_decision_expires(self, worker):
        """The time to take it back ends with the question's, and a late sweep still finds it decided."""
        people = voting(worker, ALONE, expires_in=5.0)

        assert people.vote("ana").status == "accepted"
        assert people.vote("ben").status == "duplicate"
        worker.clock.advance(3_600)
        assert people.vote("ben").status == "duplicate"
        assert worker.sweep() == ["a.1.1"]
        assert people.now.decision == "approve"

    def test_it_expires_after_it_was_taken_back(self, worker):
        """At its time, with its reminders and escalations, which a decided question does not send."""
        rule = replace(ALONE, escalate=[(20, ["role:lead"])])
        people = voting(worker, rule, expires_in=60.0, remind_after=(5.0, 30.0))
        run_id = people.question.run_id

        worker.sweep(after=4)
        assert people.vote("ana").status == "accepted"
        worker.sweep(after=5)
        assert "interrupt.reminded a" not in worker.kinds(run_id)
        assert people.act("ana", "withdraw_vote") == "withdrawn_vote"
        for _ in range(6):
            worker.sweep(after=10)

        kinds = [kind for kind in worker.kinds(run_id) if kind.startswith("interrupt")]
        assert kinds[-3:] == [
            "interrupt.escalated a",
            "interrupt.reminded a",
            "interrupt.expired a",
        ]

    @pytest.mark.parametrize("undo", [-1, 3_601, True, "5"])
    def test_its_seconds_are_bounded(self, undo):
        """An hour is the most, and the decision must still be usable afterwards."""
        with pytest.raises(UsageError, match="undo"):
            replace(TWO, undo=undo)
        with pytest.raises(UsageError, match="below use_within"):
            replace(TWO, undo=10, use_within=10)
