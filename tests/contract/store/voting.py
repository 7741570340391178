"""The contract of votes: questions with a rule, what counts, what decides, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runner.approvals import ballots
from runner.approvals.ballots import Ballot, Operation, Use
from runner.approvals.digests import Action
from runner.approvals.judgement import Evidence, judge
from runner.approvals.rules import Auth, DecisionKind, Principal, Rule, Voter
from runner.approvals.voting import ApplyOperation, CastVote
from runner.records.checkpoints import Saved
from runner.records.interrupts import Interrupt, InterruptStatus, Receipt, digest
from runner.records.run import EventKind
from runner.store.requests import CancelRun, LeaveVisit, UseDecision, WithdrawQuestion
from tests.contract.store.manual_worker import ManualWorker, rung
from tests.contract.store.stories import Story, stories, tell

REFUND = Action("runner", "tool", "refund", {"order": "7", "amount": "10"})

TWO = Rule(eligible=["group:finance"], need=2)


class Voting:
    """People who vote on one question of a store."""

    def __init__(self, worker: ManualWorker, question: Interrupt) -> None:
        self.worker, self.store, self.question = worker, worker.store, question
        self.reply: Any = None

    def vote(
        self,
        who: str | Principal,
        decision: DecisionKind = "approve",
        response: Any = True,
        *,
        groups: tuple[str, ...] = ("finance",),
        nonce: str = "",
        level: int = 0,
        counter: tuple[str, int] | None = None,
        **options: Any,
    ) -> Receipt:
        """Vote, as a door does that knows the voter's groups."""
        principal = Principal(who) if isinstance(who, str) else who
        voter = Voter(principal, frozenset(groups), level=level, counter=counter)
        effect = ballots.effect_of(self.question, decision, response)
        ballot = Ballot(self.question.id, voter, decision, response, effect, **options)
        self.reply = self.store.do(CastVote(ballot, nonce or self.worker.nonce()))
        (receipt,) = self.reply.receipts
        return receipt

    def act(
        self,
        who: str,
        kind: str,
        *,
        to: str = "",
        groups: tuple[str, ...] = ("finance",),
        others: tuple[str, ...] = ("finance",),
        nonce: str = "",
        level: int = 0,
        counter: tuple[str, int] | None = None,
        **options: Any,
    ) -> str:
        """Do what one does besides voting; name what became of it."""
        voter = Voter(Principal(who), frozenset(groups), level=level, counter=counter)
        other = Voter(Principal(to), frozenset(others)) if to else None
        operation = Operation(self.question.id, voter, kind, other, **options)
        self.reply = self.store.do(ApplyOperation(operation, nonce or self.worker.nonce()))
        (receipt,) = self.reply.receipts
        return str(receipt.status)

    def words(self, *votes: tuple[Any, ...]) -> list[str]:
        """Vote several times; name what became of each."""
        return [str(self.vote(*vote).status) for vote in votes]

    @property
    def now(self) -> Interrupt:
        """The question as it is stored now."""
        (stored,) = self.store.interrupts([self.question.id])
        assert stored is not None
        return stored


def voting(worker: ManualWorker, rule: Rule, **options: Any) -> Voting:
    """Ask a question with a rule, of a node that waits for it."""
    options = {"action": REFUND, **options}
    _, asked = worker.asking("a", rule=rule, **options)
    (question,) = worker.store.interrupts([asked.id])
    assert question is not None
    return Voting(worker, question)


def edited(amount: str) -> dict[str, str]:
    """Return other arguments of the call."""
    return {**REFUND.args, "amount": amount}


LIFETIME, SPENT = 300, "this signature has counted"


def signed(worker: ManualWorker, jti: str) -> dict[str, Any]:
    """Return the body of a message whose signature a door has checked."""
    now = worker.clock.now // 1000
    return {"proof": {"jti": jti, "iat": now, "exp": now + LIFETIME}}


class Votes(Story):
    """What people do about one question, by their names."""

    def __init__(self, worker: ManualWorker, rule: Rule, **options: Any) -> None:
        self.people = voting(worker, rule, **options)
        super().__init__(worker)
        self.runs[""] = self.people.question.run_id

    def approve(self, who: str) -> str:
        return str(self.people.vote(who).status)

    def reject(self, who: str) -> str:
        return str(self.people.vote(who, "reject").status)

    def edit(self, who: str, amount: str) -> str:
        return str(self.people.vote(who, "edit", edited(amount)).status)

    def agree(self, who: str, amount: str) -> str:
        """Approve what somebody has edited."""
        return str(self.people.vote(who, "approve", edited(amount)).status)

    def take_back(self, who: str) -> str:
        return self.people.act(who, "withdraw_vote")

    def delegate(self, who: str, to: str) -> str:
        return self.people.act(who, "delegate", to=to)

    def numbers(self) -> str:
        """Number the votes that stand."""
        votes = self.store.votes(self.people.question.id)
        return " ".join(str(vote["n"]) for vote in votes)

    def decided(self) -> str:
        """Return what was decided, which a worker counts to the same end."""
        question, now = self.people.question, self.people.now
        votes = self.store.votes(question.id)
        assert judge(question, now, Evidence(votes)).decision == now.decision
        return now.decision


STORIES = {
    "two who outbid each other and then agree: the worker counts all of it to the same end": (
        TWO,
        """
        edit ana 5
        edit ben 7
        agree ana 7 = accepted
        numbers = 1 2 3
        decided = edit
        """,
    ),
    "everyone must agree: whoever has edited edits back, and votes start anew": (
        Rule(eligible=["ana", "ben"], need=2),
        """
        approve ana
        edit ben 5
        approve ana
        approve ben = duplicate
        take_back ben = rejected
        edit ben 10
        edit ben 10 = duplicate
        approve ana = accepted
        decided = approve
        """,
    ),
    "who has voted is lent no vote; who votes by their own right leaves the other to its owner": (
        replace(TWO, delegate="anyone"),
        """
        delegate ana ben
        approve ben
        delegate ana ben = duplicate
        approve ana = accepted
        """,
    ),
    "an edit that others have approved is not taken back, also where edits keep earlier votes": (
        replace(TWO, need=3, edit="keeps"),
        """
        edit ana 5
        agree ben 5
        take_back ana = rejected
        take_back ben
        take_back ana
        """,
    ),
    "a vote is taken back while nothing has followed from it; its voter may vote again": (
        replace(TWO, veto=2),
        """
        take_back ana = rejected
        approve ana
        reject ben
        take_back ana
        take_back ben
        take_back ben = rejected
        numbers
        approve cid
        reject ana
        approve ben = accepted
        numbers = 3 4 5
        """,
    ),
    "who stands in for one of the first stage has no vote in the next one": (
        Rule(stages=[Rule(eligible=["ana"]), Rule(eligible=["ben"])], delegate="anyone"),
        """
        delegate ana eve
        approve eve
        approve eve = forbidden
        delegate ben fay
        approve fay = accepted
        """,
    ),
}


class VotingContract:
    """Questions that are decided by a rule."""

    @stories(STORIES)
    def test_votes_count_as_its_story_says(self, worker, graph, story):
        """Votes that are taken back, and those in the place of others."""
        tell(Votes(worker, graph), story)

    @pytest.mark.scripts
    def test_the_vote_that_meets_the_rule_decides(self, worker, store):
        """Votes for one effect add up; that which makes them enough answers the question."""
        people = voting(worker, TWO)
        run_id = people.question.run_id

        first = people.vote("ana", comment="fine")
        assert (first.status, first.have, first.need, first.against) == ("counted", 1, 2, 0)
        assert (rung(people.reply), people.now.is_open) == ([], True)
        last = people.vote("ben")

        assert (last.status, last.have, last.need) == ("accepted", 2, 2)
        assert rung(people.reply) == ["a.1.1"]
        decided = people.now
        assert (decided.status, decided.response, decided.decision) == (
            "answered",
            True,
            "approve",
        )
        assert (decided.responder, decided.effect) == ("ben", REFUND.digest())
        (answer,) = worker.claim(run_id, "a").answers
        assert answer == decided
        assert [
            (vote["n"], vote["by"], vote["comment"]) for vote in store.votes(people.question.id)
        ] == [
            (1, "human:|ana", "fine"),
            (2, "human:|ben", ""),
        ]
        kinds = [kind for kind in worker.kinds(run_id) if kind.startswith("interrupt.")]
        assert kinds == [
            f"interrupt.{word} a" for word in ("asked", "voted", "voted", "answered")
        ]

    def test_a_question_with_a_rule_has_a_digest_of_where_it_was_asked(self, worker):
        """It covers the rule, the call, and the run's graph, which the store adds as it asks."""
        people = voting(worker, TWO, risk="high", expires_in=60)
        question = people.question

        assert (question.digest_v, question.risk, question.action) == (
            2,
            "high",
            REFUND.preimage(),
        )
        assert question.place is not None
        assert question.place["root"] == question.run_id
        assert question.digest == digest(question)
        other = voting(worker, replace(TWO, need=1), risk="high", expires_in=60).question
        assert other.digest.startswith("sha256:")
        assert other.digest != question.digest

    def test_a_key_stands_for_one_decision(self, worker):
        """A rejection under the key of an approval is not told that it was counted or accepted."""
        people = voting(worker, TWO)
        for who, status in (("ana", "counted"), ("ben", "accepted")):
            assert people.vote(who, idempotency_key="k").status == status
            another = people.vote(who, "reject", None, idempotency_key="k")
            assert (another.status, "belongs to another" in another.detail) == (
                "rejected",
                True,
            )
            assert people.vote(who, idempotency_key="k").status == status

    def test_a_person_counts_once(self, worker):
        """Another vote of the same principal is a duplicate; a repeat of one gets its receipt again."""
        people = voting(worker, TWO)
        first = people.vote("ana", nonce="n", idempotency_key="key")

        assert people.vote("ana", nonce="n") == first
        assert people.vote("ana", idempotency_key="key") == first
        assert people.words(("ana",), ("ana", "reject")) == ["duplicate", "duplicate"]
        assert people.words(("ben",), ("cid",)) == ["accepted", "duplicate"]

    def test_a_signature_counts_once(self, worker, store):
        """Whatever came after it: votes of others, edits, another vote of the same person."""
        people = voting(worker, replace(TWO, need=3))
        first, second = signed(worker, "1"), signed(worker, "2")

        receipt = people.vote("ana", body=first)
        assert people.vote("ana", body=first) == receipt
        assert people.words(("ben", "edit", edited("5"))) == ["counted"]
        assert people.vote("ana", response=edited("5"), body=second).have == 2
        assert people.words(("ben", "edit", edited("6"))) == ["counted"]
        (before,) = store.standings([people.question.id])

        assert people.vote("ana", body=first).detail == SPENT
        assert people.vote("ana", "edit", edited("5"), body=first).status == "duplicate"
        assert people.vote("ana", response=edited("5"), body=second).have == 2
        assert store.standings([people.question.id]) == [before]

    @pytest.mark.full
    @pytest.mark.parametrize(
        ("seconds", "taken"),
        [(-61, False), (-60, True), (LIFETIME + 60, True), (LIFETIME + 61, False)],
    )
    def test_a_signature_is_of_the_stores_time(self, worker, seconds, taken):
        """What a worker would refuse later is refused when it comes, and no vote is spent."""
        people = voting(worker, TWO)
        body = signed(worker, "1")
        worker.clock.now += seconds * 1000
        receipt = people.vote("ana", body=body)
        assert receipt.status == ("counted" if taken else "forbidden")
        assert ("clock" in receipt.detail) is not taken
        again = people.act("ben", "claim", ttl=60, body=body)
        assert again == ("accepted" if taken else "forbidden")

    @pytest.mark.full
    @pytest.mark.parametrize(
        ("count", "again"), [(4, "forbidden"), (5, "forbidden"), (6, "counted")]
    )
    def test_a_passkey_that_does_not_count_on_is_refused(self, worker, store, count, again):
        """On any question, and recorded; one that counts higher is taken, and one that never counts."""
        first, second = (voting(worker, replace(TWO, need=5)) for _ in range(2))
        assert first.vote("ana", counter=("laptop", 5)).status == "counted"

        receipt = second.vote("ana", counter=("laptop", count))

        assert receipt.status == again
        assert ("revoked" in receipt.detail) == (again == "forbidden")
        kinds = [event.kind for event in store.events(second.question.run_id)]
        assert (EventKind.INTERRUPT_REFUSED in kinds) == (again == "forbidden")
        assert second.act("ana", "claim", counter=("laptop", count)) == "forbidden"
        assert second.act("ana", "claim", counter=("laptop", 7)) == "accepted"
        assert second.act("ana", "release", counter=("laptop", 0)) == "forbidden"
        never_counts = [second.vote(who, counter=("phone", 0)).status for who in ("ben", "eva")]
        assert never_counts == ["counted", "counted"]

    def test_a_jti_counts_once_on_a_question(self, worker, store):
        """A vote with the jti of another person's is refused: the worker would not count it."""
        people = voting(worker, TWO)
        assert people.vote("ana", body=signed(worker, "1")).status == "counted"
        refused = people.vote("ben", body=signed(worker, "1"))
        assert (refused.status, "jti" in refused.detail) == ("duplicate", True)
        assert len(store.votes(people.question.id)) == 1
        assert people.vote("ben", body=signed(worker, "2")).status == "accepted"

    def test_who_may_not_vote_is_refused(self, worker, store):
        """Strangers, agents, the excluded and the unproved are forbidden, which is an event of the run."""
        rule = replace(TWO, exclude=["ben"], auth=Auth(level=2))
        people = voting(worker, rule)
        agent = Principal("bot", kind="agent")

        refused = [
            people.vote("eve", groups=(), level=2),
            people.vote("ben", level=2),
            people.vote(agent, level=2),
            people.vote("ana", level=1),
        ]

        assert {str(receipt.status) for receipt in refused} == {"forbidden"}
        assert all(receipt.detail for receipt in refused)
        assert store.votes(people.question.id) == []
        events = store.events(people.question.run_id)
        assert [event.kind for event in events].count(EventKind.INTERRUPT_REFUSED) == 4

    @pytest.mark.routed
    def test_the_requester_does_not_decide(self, worker, store):
        """Who started the run is known to the store, and frozen into its questions."""
        requester = {"principal": "human:|ana"}
        run_id = worker.start("a", requester=requester)
        (asked,) = worker.park(
            run_id, "a", rule=replace(TWO, exclude=["requester"]), action=REFUND
        )
        (question,) = store.interrupts([asked.id])
        assert question is not None
        people = Voting(worker, question)

        assert (question.requester, store.requester(run_id)) == ("human:|ana", requester)
        assert people.words(("ana",), ("ben",), ("cid",)) == [
            "forbidden",
            "counted",
            "accepted",
        ]

    def test_an_edit_goes_back_to_the_first_stage(self, worker):
        """It counts nothing there for one who may not vote there; an approval of it is no other edit."""
        rule = Rule(stages=[Rule(eligible=["group:finance"]), Rule(eligible=["group:board"])])
        people, board = voting(worker, rule), ("board",)

        assert people.vote("ana").status == "counted"
        assert people.vote("cleo", "edit", edited("5"), groups=board).status == "counted"
        assert people.vote("cid", response=edited("5"), groups=board).status == "forbidden"
        assert people.vote("ana", response=edited("5")).status == "counted"
        assert people.vote("cid", response=edited("5"), groups=board).status == "accepted"

    def test_a_question_that_is_over_takes_no_votes(self, worker, store):
        """Expired, withdrawn, another digest, no rule, never asked: each has its receipt."""
        people = voting(worker, TWO, expires_in=60)
        assert people.vote("ana", digest="sha256:other").status == "rejected"
        assert people.vote("ana", digest=people.question.digest).status == "counted"
        worker.clock.advance(60)
        assert people.vote("ben").status == "expired"
        worker.sweep()
        assert people.vote("ben").status == "expired"
        gone = voting(worker, TWO)
        store.do(WithdrawQuestion(gone.question.id, "", reask=False))
        assert gone.vote("ana").status == "superseded"
        assert gone.now.status is InterruptStatus.WITHDRAWN
        plain = Voting(worker, worker.asking("a")[1])
        assert plain.vote("ana").status == "unknown"
        assert (
            Voting(worker, replace(people.question, id="00none.a.1.x")).vote("ana").status
            == "unknown"
        )

    def test_a_decision_is_used_once(self, worker, store):
        """It is written with the checkpoint that starts what it is for: under one key, for one effect."""
        people = voting(worker, replace(TWO, need=1))
        name, run_id = people.question.id, people.question.run_id
        people.vote("ana")
        token = worker.token(run_id, "a")
        use = Use(name, REFUND.digest(), "first", "asks")

        assert store.do(UseDecision(token, use, Saved({"v": 1, "step": 2}))).word == "used"
        assert store.do(UseDecision(token, use, Saved({"v": 1, "step": 3}))).word == "used"
        for other in (replace(use, key="second"), replace(use, effect="sha256:0")):
            assert (
                store.do(UseDecision(token, other, Saved({"v": 1, "step": 4}))).word == "spent"
            )
        assert (
            store.do(
                UseDecision(token, replace(use, key="next", role="follows"), Saved({"v": 1}))
            ).word
            == "used"
        )
        used = people.now.used
        assert used is not None
        assert (used["key"], used["effect"]) == ("next", REFUND.digest())
        kinds = [kind for kind in worker.kinds(run_id) if kind == "interrupt.used a"]
        assert len(kinds) == 2
        assert store.documents(run_id)["a"] == {"v": 1}

    @pytest.mark.routed
    def test_what_nobody_decided_is_not_used(self, worker, store):
        """Nor what a worker no longer owns: nothing is written then."""
        people = voting(worker, TWO)
        people.vote("ana")
        run_id, token = worker.begin("a")
        use = Use(people.question.id, REFUND.digest(), "key")

        assert store.do(UseDecision(token, use, Saved({"v": 1}))).word == "spent"
        store.do(LeaveVisit(token))
        assert store.do(UseDecision(token, use, Saved({"v": 1}))).word == "stale"
        assert (store.documents(run_id), people.now.used) == ({}, None)

    def test_a_rule_is_not_met_by_an_answer(self, worker):
        """Whatever door forgets it: what is decided by votes takes no answer past them."""
        people = voting(worker, Rule(eligible=["ana"]))

        assert worker.answer(people.question, responder="ana") == ["forbidden"]
        assert people.now.is_open

    def test_a_claim_shows_who_works_on_it(self, worker, store):
        """One person at a time claims a question, for some time; others may still vote."""
        people = voting(worker, TWO)

        assert people.act("eve", "claim", groups=(), ttl=60_000) == "forbidden"
        assert people.act("ana", "claim", ttl=60_000) == "accepted"
        assert people.act("ben", "claim", ttl=60_000) == "duplicate"
        assert people.act("ben", "release") == "forbidden"
        assert people.words(("ben",)) == ["counted"]
        (standing,) = store.standings([people.question.id])
        assert (standing.claim, standing.claimed_until) == (
            "human:|ana",
            worker.clock.now + 60_000,
        )
        worker.clock.advance(60)
        assert people.act("ben", "claim", ttl=60_000) == "accepted"
        assert people.act("ben", "release") == "accepted"
        (standing,) = store.standings([people.question.id])
        assert (standing.claim, standing.votes) == ("", 1)
        kinds = [
            kind
            for kind in worker.kinds(people.question.run_id)
            if "claimed" in kind or "released" in kind
        ]
        assert kinds == ["interrupt.claimed a", "interrupt.claimed a", "interrupt.released a"]

    def test_a_comment_is_an_event(self, worker, store):
        """Those who may vote can say something to all; a repeat of a request says it once."""
        people = voting(worker, TWO)

        assert people.act("eve", "comment", groups=(), comment="me, too") == "forbidden"
        assert [people.act("ana", "comment", comment="why?", nonce="n") for _ in range(2)] == [
            "accepted"
        ] * 2
        events = worker.events(people.question.run_id, "interrupt.commented")
        said = {"by": "human:|ana", "level": 0, "method": "asserted", "comment": "why?"}
        assert [event.data for event in events] == [said]

    @pytest.mark.routed
    def test_one_may_vote_in_the_place_of_another(self, worker, store):
        """Who delegates has no vote any more, and the other one has one; each counts once.

        The event of the question says whom it was asked.
        """
        people = voting(
            worker, replace(TWO, eligible=["ana", "ben", "group:finance"], delegate="anyone")
        )
        eve: dict[str, Any] = {"groups": ()}

        asked = store.events(people.question.run_id)
        assert people.vote("eve", **eve).status == "forbidden"
        assert people.act("eve", "delegate", to="ana", **eve) == "forbidden"
        assert people.act("ana", "delegate", to="eve", others=()) == "accepted"
        assert people.vote("ana").status == "forbidden"
        assert people.act("eve", "delegate", to="dan", **eve) == "forbidden"
        assert store.events(people.question.run_id)[: len(asked)] == asked
        assert [
            event.data["assignees"] for event in asked if event.kind == "interrupt.asked"
        ] == [["ana", "ben"]]
        assert people.vote("eve", **eve).status == "counted"
        assert people.act("ana", "delegate", to="ana") == "duplicate"
        assert people.vote("ben").status == "accepted"
        assert [vote["selector"] for vote in store.votes(people.question.id)] == [
            "delegated",
            "user:human:|ben",
        ]

    def test_a_rule_says_to_whom_one_may_delegate(self, worker):
        """To nobody, to somebody of the same group; where people must prove who they are, they prove that."""
        none, group = voting(worker, TWO), voting(worker, replace(TWO, delegate="group"))
        sure = voting(worker, replace(TWO, delegate="anyone", auth=Auth(level=1)))

        assert none.act("ana", "delegate", to="ben") == "forbidden"
        assert group.act("ana", "delegate", to="eve", others=("sales",)) == "forbidden"
        assert group.act("ana", "delegate", to="ben") == "accepted"
        assert group.act("ana", "delegate", to="ana") == "accepted"
        assert group.words(("ana",), ("ben",)) == ["counted", "accepted"]
        assert sure.act("ana", "delegate", to="ben") == "forbidden"
        word: dict[str, Any] = {"level": 1, "body": signed(worker, "1")}
        assert [sure.act("ana", "delegate", to=who, **word) for who in ("ben", "eve")] == [
            "accepted"
        ] * 2
        assert sure.vote("ben", level=1, groups=()).status == "counted"
        (vote,) = sure.store.votes(sure.question.id)
        assert (vote["selector"], vote["lent"]) == ("delegated", word["body"])

    @pytest.mark.full
    @pytest.mark.parametrize("key", ["first", "second"])
    def test_a_vote_that_was_taken_back_counts_no_more(self, worker, store, key):
        """Its message comes again and gets the receipt of that; with another key it is another vote."""
        people = voting(worker, TWO)
        people.vote("ana", idempotency_key="first")
        people.act("ana", "withdraw_vote")

        is_again = key == "first"
        receipts = [people.vote("ana", idempotency_key=key).status for _ in range(2)]
        assert set(receipts) == {"withdrawn_vote" if is_again else "counted"}
        assert len(store.votes(people.question.id)) == (not is_again)

    def test_a_vote_that_others_have_built_on_stays(self, worker):
        """Of a stage that is met, and an edit that voided others."""
        stages = voting(
            worker, Rule(stages=[Rule(eligible=["group:finance"]), Rule(eligible=["ben"])])
        )
        both = voting(worker, Rule(stages=[replace(TWO, need=1), TWO]))
        edit = voting(worker, TWO)

        assert stages.vote("ana").status == "counted"
        assert stages.act("ana", "withdraw_vote") == "forbidden"
        assert both.vote("ana").status == "counted"
        assert both.act("ana", "withdraw_vote") == "rejected"
        assert edit.words(("ana",), ("ben", "edit", edited("5"))) == ["counted", "counted"]
        assert [edit.act(who, "withdraw_vote") for who in ("ana", "ben")] == [
            "rejected",
            "rejected",
        ]

    @pytest.mark.routed
    @pytest.mark.scripts
    def test_a_question_escalates(self, worker, store):
        """When a question was open for so long, others may vote, too; each step is an event once."""
        rule = replace(TWO, escalate=[(60, ["role:lead"]), (120, ["eve"])])
        people = voting(worker, rule)
        eve: dict[str, Any] = {"groups": ()}

        assert people.vote("eve", **eve).status == "forbidden"
        worker.sweep(after=60)
        worker.sweep(after=59)
        assert people.vote("eve", **eve).status == "forbidden"
        worker.sweep(after=1)
        worker.sweep(after=1_000)

        assert people.vote("eve", **eve).status == "counted"
        events = worker.events(people.question.run_id, "interrupt.escalated")
        assert [event.data for event in events] == [
            {"step": 1, "selectors": ["role:lead"]},
            {"step": 2, "selectors": ["role:lead", "user:human:|eve"]},
        ]
        (standing,) = store.standings([people.question.id])
        assert standing.escalated == 2

    def test_a_decided_question_is_left_alone(self, worker, store):
        """It does not escalate, and takes no operation: a comment leaves neither an event nor a count."""
        people = voting(worker, replace(TWO, need=1, escalate=[(60, ["role:lead"])]))
        run_id = people.question.run_id
        assert people.vote("ana").status == "accepted"
        worker.settle(worker.token(run_id, "a"))
        worker.clock.advance(61)

        assert store.sweep().count == 0
        assert people.act("ben", "comment", comment="too late") not in {"accepted", "forbidden"}
        assert store.standings([people.question.id])[0].comments == 0
        assert "interrupt.commented a" not in worker.kinds(run_id)

    @pytest.mark.full
    @pytest.mark.parametrize("end", ["withdrawn", "expired", "cancelled"])
    def test_a_question_that_has_ended_leaves_no_timer(self, worker, store, end):
        """Nothing is due later for it, however it ended; see the test before for a decision."""
        rule = replace(TWO, escalate=[(600, ["role:lead"])])
        question = voting(worker, rule, expires_in=900 if end != "expired" else 60).question
        if end == "withdrawn":
            store.do(WithdrawQuestion(question.id, "", reask=False))
        elif end == "cancelled":
            store.do(CancelRun(question.run_id, "enough"))
        else:
            worker.sweep(after=60)
        worker.clock.advance(1_000)

        assert store.sweep().count == (0 if end == "cancelled" else 1)

    @pytest.mark.routed
    def test_who_answered_a_node(self, worker, store):
        """Those who answered what a node asked last, or voted on it, are known by their keys."""
        run_id = worker.start("a b")
        (plain,) = worker.park(run_id, "a")
        worker.answer(plain, responder="ana")
        (asked,) = worker.park(run_id, "b", rule=TWO, action=REFUND)
        (question,) = store.interrupts([asked.id])
        assert question is not None
        Voting(worker, question).vote("ben")

        assert store.answerers(run_id, "a") == {"human:|ana"}
        assert store.answerers(run_id, "b") == {"human:|ben"}
        assert store.answerers(run_id, "b", but=question.id) == frozenset()
        assert store.answerers(run_id, "c") == store.answerers("00none", "a") == frozenset()
