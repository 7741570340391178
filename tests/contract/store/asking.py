"""The contract of questions: `ask`, `park`, `answer`, `withdraw`, and answers that come too late."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from runner.records.interrupts import (
    Address,
    Decision,
    Interrupt,
    InterruptStatus,
    Receipt,
    ReceiptStatus,
)
from runner.records.run import Status
from runner.store.interface import Store, Token
from runner.store.requests import (
    AnswerQuestions,
    AskQuestions,
    CancelRun,
    ClaimVisit,
    ParkVisit,
    WithdrawQuestion,
)
from tests.contract.store.manual_worker import ManualWorker, rung, saved, shape


def receipt_statuses(receipts: list[Receipt]) -> list[str]:
    """Name what became of each answer."""
    return [str(receipt.status) for receipt in receipts]


Ending = Callable[[ManualWorker], Interrupt]
"""Asks a question, and makes it end in some way."""


def _parked(end: Callable[[ManualWorker, Interrupt], object], **options: Any) -> Ending:
    def ending(worker: ManualWorker) -> Interrupt:
        # A branch beside it keeps the run going.
        _, question = worker.asking(shape("a b", policy="continue"), **options)
        end(worker, question)
        return question

    return ending


def _running(end: Callable[[ManualWorker, Token], object], graph: str) -> Ending:
    def ending(worker: ManualWorker) -> Interrupt:
        _, token = worker.begin(graph)
        question = worker.ask(token)
        end(worker, token)
        return question

    return ending


def _ask_again_in_a_loop(worker: ManualWorker, token: Token) -> None:
    worker.settle(token)
    worker.run(token.run_id, "b")
    worker.park(token.run_id, "a", visit=2)


def _never_asked(worker: ManualWorker) -> Interrupt:
    return Address(worker.asking("a")[0], "a", 1).ask("something else", scope="function")


def _of_no_run(_: ManualWorker) -> Interrupt:
    return Address("00none", "a", 1).ask("ok?", scope="function")


OVER = ("expired", "the time to answer is over")
WITHDRAWN = ("superseded", "the question was withdrawn")
UNKNOWN = ("unknown", "no such question was asked")

LATE: dict[str, tuple[Ending, tuple[str, str]]] = {
    "answered": (
        _parked(lambda worker, question: worker.answer(question, responder="ann")),
        ("duplicate", "already answered by ann"),
    ),
    "expired": (_parked(lambda worker, _: worker.sweep(after=60), expires_in=60), OVER),
    "expired unnoticed": (
        _parked(lambda worker, _: worker.clock.advance(60), expires_in=60),
        OVER,
    ),
    "failed": (
        _parked(lambda worker, _: worker.sweep(after=60), expires_in=60, on_expire="fail"),
        OVER,
    ),
    "withdrawn": (
        _parked(lambda worker, own: worker.store.do(WithdrawQuestion(own.id, "", reask=False))),
        WITHDRAWN,
    ),
    "cancelled": (
        _parked(lambda worker, own: worker.store.do(CancelRun(own.run_id, "enough"))),
        WITHDRAWN,
    ),
    "of a node that ended": (_running(ManualWorker.settle, "a b"), WITHDRAWN),
    "of a run that ended": (_running(ManualWorker.fail, "a"), WITHDRAWN),
    "of an older visit": (_running(_ask_again_in_a_loop, "a>b b>a"), WITHDRAWN),
    "never asked": (_never_asked, UNKNOWN),
    "of no run": (_of_no_run, UNKNOWN),
}


class AskingContract:
    """Questions, waiting, answers and withdrawals."""

    def test_a_question_is_open_as_soon_as_it_is_ask(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """A running visit can publish a question at once; asking again changes nothing."""
        run_id, token = worker.begin("a")
        question = worker.question(token, reason={"amount": 5}, assignees=["ann"])

        assert store.do(AskQuestions(token, [question, question], saved(1))).word == "asked"
        open_questions = worker.read(run_id).interrupts
        worker.clock.advance(1)
        assert store.do(AskQuestions(token, [question], None)).word == "asked"

        assert [(stored.id, stored.reason, stored.asked_at) for stored in open_questions] == [
            (question.id, {"amount": 5}, worker.clock.now - 1000)
        ]
        assert store.interrupts([question.id, "00none.a.1.x", "malformed"]) == [
            open_questions[0],
            None,
            None,
        ]
        assert list(worker.read(run_id).interrupts) == worker.open() == list(open_questions)
        assert worker.kinds(run_id).count("interrupt.asked a") == 1

    def test_a_waiting_node_holds_nothing(self, worker: ManualWorker) -> None:
        """A parked visit waits without a lease for as long as it takes, while other branches run on."""
        run_id = worker.start("a b")
        worker.park(run_id, "a")
        assert worker.statuses(run_id) == "executing: a waiting, b ready"
        worker.run(run_id, "b")

        assert worker.sweep(after=30 * 86_400) == []
        assert worker.statuses(run_id) == "interrupted: a waiting, b completed"

    def test_an_answer_makes_the_node_ready(self, worker: ManualWorker, store: Store) -> None:
        """An answered node is rung in the same step and finds the answer in its claim."""
        run_id, token = worker.begin("a")
        question = worker.question(token)
        store.do(ParkVisit(token, [question], saved(1, "hello")))
        worker.clock.advance(3)

        reply = store.do(
            AnswerQuestions([Decision(question.id, {"ok": False}, "ann", "key")], "n")
        )
        receipts = reply.receipts

        assert receipts == [Receipt(ReceiptStatus.ACCEPTED, question.id, run_id)]
        assert rung(reply) == ["a.1.1"]
        claim = worker.claim(run_id, "a")
        (answered,) = claim.answers
        assert (answered.status, answered.response) == (InterruptStatus.ANSWERED, {"ok": False})
        assert (answered.responder, answered.idempotency_key) == ("ann", "key")
        assert answered.answered_at == worker.clock.now
        assert (claim.document, list(claim.messages)) == ({"v": 1, "step": 1}, ["hello"])
        assert claim.token.fence > token.fence
        assert claim.record.unseen == 0
        assert not worker.open()

    def test_a_node_waits_for_all_its_answers(self, worker: ManualWorker) -> None:
        """By default a node with several questions goes on when the last one is answered."""
        run_id = worker.start("a")
        one, two = worker.park(run_id, "a", "one", "two")
        worker.answer(two)
        assert worker.statuses(run_id) == "interrupted: a waiting"
        worker.answer(one)
        assert worker.statuses(run_id) == "executing: a ready"
        assert [answer.name for answer in worker.claim(run_id, "a").answers] == ["one", "two"]

    def test_a_node_may_go_on_at_each_answer(self, worker: ManualWorker, store: Store) -> None:
        """With resume="each" every answer makes the node ready; it may wait again for the rest."""
        run_id = worker.start(shape("a", resume_each=["a"]))
        one, two = worker.park(run_id, "a", "one", "two")
        worker.answer(one)
        token = worker.token(run_id, "a")

        assert store.do(ParkVisit(token, [two], None)).word == "waiting"
        worker.answer(two)
        assert [answer.name for answer in worker.claim(run_id, "a").answers] == ["one", "two"]

    def test_an_answer_to_a_running_node_wakes_it_when_it_parks(
        self, worker: ManualWorker
    ) -> None:
        """No wake-up is lost: a node that parks after its answer came is ready at once."""
        run_id, token = worker.begin("a")
        question = worker.ask(token)
        assert worker.answer(question) == ["accepted"]
        assert worker.statuses(run_id) == "executing: a running"

        reply = worker.store.do(ParkVisit(token, [question], None))

        assert (reply.word, rung(reply)) == ("ready", ["a.1.1"])

    def test_an_answer_seen_does_not_wake_twice(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """A claim has seen the answers so far: only a newer one wakes the node."""
        run_id = worker.start(shape("a", resume_each=["a"]))
        one, two = worker.park(run_id, "a", "one", "two")
        worker.answer(one)

        assert (
            store.do(ParkVisit(worker.token(run_id, "a"), [one, two], None)).word == "waiting"
        )
        assert worker.statuses(run_id) == "interrupted: a waiting"

    def test_waiting_for_nothing_is_refused(self, worker: ManualWorker, store: Store) -> None:
        """A node that would wait without an open question is refused and stays running."""
        run_id, question = worker.asking("a")
        worker.answer(question)
        token = worker.token(run_id, "a")

        assert store.do(ParkVisit(token, [], None)).word == "nothing_open"
        assert store.do(ParkVisit(token, [question], None)).word == "nothing_open"
        assert worker.statuses(run_id) == "executing: a running"

    def test_questions_left_out_are_withdrawn(self, worker: ManualWorker, store: Store) -> None:
        """What a node asked and no longer waits for is withdrawn; asked again, it has a new id."""
        run_id = worker.start(shape("a", resume_each=["a"]))
        one, two = worker.park(run_id, "a", "one", "two")
        worker.answer(one)
        three = worker.question(worker.token(run_id, "a"), "three")
        token = worker.read(run_id).nodes["a"]
        assert token.status is Status.RUNNING
        claim = store.do(ClaimVisit(run_id, "a", 1, 1, token.nonce))

        assert store.do(ParkVisit(claim.token, [three], None)).word == "waiting"  # type: ignore[union-attr]
        assert [
            (question.name, question.status) for question in worker.read(run_id).interrupts
        ] == [
            ("one", "answered"),
            ("two", "withdrawn"),
            ("three", "open"),
        ]
        assert worker.answer(two) == ["superseded"]
        worker.answer(three)
        claim = worker.claim(run_id, "a")
        assert [(answer.name, answer.status) for answer in claim.answers] == [
            ("one", "answered"),
            ("two", "withdrawn"),
            ("three", "answered"),
        ]
        again = worker.numbered_question(claim, "two")
        assert again.id != two.id
        assert store.do(ParkVisit(claim.token, [again], None)).word == "waiting"
        assert [question.id for question in worker.open()] == [again.id]
        assert worker.answer(two) == ["superseded"]
        assert worker.answer(again) == ["accepted"]

    def test_a_withdrawn_id_is_never_opened_again(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """A node that asks under it has nothing to wait for: what the id meant is what was judged."""
        run_id = worker.start(shape("a", resume_each=["a"]))
        one, two = worker.park(run_id, "a", "one", "two")
        worker.answer(one)
        token = worker.token(run_id, "a")
        three = worker.question(token, "three")
        store.do(ParkVisit(token, [three], None))
        worker.answer(three)
        token = worker.token(run_id, "a")
        changed = replace(two, reason=1_000_000)

        assert store.do(AskQuestions(token, [changed], None)).word == "asked"
        assert store.do(ParkVisit(token, [changed], None)).word == "nothing_open"
        assert not worker.open()
        (still,) = store.interrupts([two.id])
        assert still is not None
        assert (still.status, still.reason) == ("withdrawn", None)

    def test_a_repeated_park_gets_the_first_word(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """A park whose reply was lost can be repeated, even when the answer has come since."""
        _, token = worker.begin("a")
        question = worker.question(token)

        words = [store.do(ParkVisit(token, [question], saved(1))).word for _ in range(2)]
        worker.answer(question)

        assert [*words, store.do(ParkVisit(token, [question], saved(1))).word] == [
            "waiting",
            "waiting",
            "ready",
        ]

    def test_an_answer_counts_once(self, worker: ManualWorker, store: Store) -> None:
        """A second answer is a duplicate; the same request, or the same key, gets its receipt again."""
        run_id, question = worker.asking("a")
        first = [Decision(question.id, 1, "ann", "key")]

        assert receipt_statuses(store.do(AnswerQuestions(first, "n1")).receipts) == ["accepted"]
        assert receipt_statuses(
            store.do(AnswerQuestions([Decision(question.id, 2)], "n1")).receipts
        ) == ["accepted"]
        assert receipt_statuses(
            store.do(AnswerQuestions([Decision(question.id, 2, None, "key")], "n2")).receipts
        ) == ["accepted"]
        (late,) = store.do(AnswerQuestions([Decision(question.id, 2, "bob")], "n3")).receipts
        assert (late.status, late.detail) == (
            ReceiptStatus.DUPLICATE,
            "already answered by ann",
        )
        assert [answer.response for answer in worker.claim(run_id, "a").answers] == [1]

    def test_a_set_of_answers_applies_whole_or_not_at_all(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """One answer that can't be used keeps the whole set from being applied."""
        run_id = worker.start("a b")
        (one,), (two,) = worker.park(run_id, "a"), worker.park(run_id, "b", assignees=["ann"])
        before = worker.read(run_id)

        assert worker.answer(one, two) == ["rejected", "forbidden"]
        assert worker.answer(one, one) == ["rejected", "rejected"]
        unknown = [Decision(one.id, 1), Decision("00none.a.1.x", 1), Decision("malformed", 1)]
        assert receipt_statuses(store.do(AnswerQuestions(unknown, "n")).receipts) == [
            "rejected",
            "unknown",
            "unknown",
        ]
        assert worker.read(run_id) == before
        assert worker.answer(one, two, responder="ann") == ["accepted", "accepted"]
        assert worker.statuses(run_id) == "executing: a ready, b ready"

    def test_a_set_may_answer_several_runs(self, worker: ManualWorker, store: Store) -> None:
        """Answers to questions of different runs and nodes of a partition are one set, too."""
        graph = shape("a b")
        runs = [worker.start(graph)]
        runs.append(worker.start(graph, beside=runs[0]))
        questions = [
            worker.park(run_id, node, "x", "y") for node in ("a", "b") for run_id in runs
        ]
        mixed = [question for pair in zip(*questions, strict=True) for question in pair]

        reply = store.do(AnswerQuestions([Decision(question.id, 1) for question in mixed], "n"))
        receipts = reply.receipts

        assert receipt_statuses(receipts) == ["accepted"] * 8
        assert sorted(bell.task_id for bell in reply.doorbells) == [
            f"{run_id}.{node}.1.1" for run_id in sorted(runs) for node in "ab"
        ]

    def test_an_approval_holds_for_what_was_shown(self, worker: ManualWorker) -> None:
        """An answer with the digest of another question is rejected, and the question stays open."""
        _, question = worker.asking("a")

        assert worker.answer(question, digest="sha256:other") == ["rejected"]
        assert worker.answer(question, digest=question.digest) == ["accepted"]

    @pytest.mark.routed
    def test_a_withdrawn_question_wakes_its_node(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """The node goes on, and its claim has the withdrawal with its reason."""
        run_id, question = worker.asking("a")

        reply = store.do(WithdrawQuestion(question.id, "wrong person", reask=False))

        assert (reply.word, rung(reply)) == ("withdrawn", ["a.1.1"])
        assert worker.open() == []
        (answer,) = worker.claim(run_id, "a").answers
        assert answer.status is InterruptStatus.WITHDRAWN
        assert answer.withdrawal == {"reason": "wrong person", "reask": False, "attempt": 1}
        assert worker.answer(question) == ["superseded"]
        event = next(
            event for event in store.events(run_id) if event.kind == "interrupt.withdrawn"
        )
        assert (event.detail, event.data) == (
            question.id,
            {"reason": "wrong person", "reask": False},
        )

    def test_only_an_open_question_is_withdrawn(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """An answered question stays answered; the same withdrawal twice is one."""
        run_id, answered = worker.asking("a b")
        (other,) = worker.park(run_id, "b")
        worker.answer(answered)

        assert store.do(WithdrawQuestion(answered.id, "", reask=False)).word == "closed"
        assert store.do(WithdrawQuestion("00none.a.1.abc", "", reask=False)).word == "unknown"
        assert store.do(WithdrawQuestion("nonsense", "", reask=False)).word == "unknown"
        assert store.do(WithdrawQuestion(other.id, "", reask=True)).word == "withdrawn"
        again = store.do(WithdrawQuestion(other.id, "", reask=True))
        assert (again.word, rung(again)) == ("withdrawn", [])
        assert store.do(WithdrawQuestion(other.id, "late", reask=True)).word == "closed"

    def test_a_question_asked_again_is_another_one(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """The node may ask again under a new id, never the old one; other open questions stay open."""
        run_id = worker.start("a")
        first, second = worker.park(run_id, "a", "one", "two")

        assert rung(store.do(WithdrawQuestion(first.id, "", reask=True))) == ["a.1.1"]

        token = worker.token(run_id, "a")
        again = worker.question(token, "one", reasked=1)
        assert again.id != first.id
        assert store.do(ParkVisit(token, [again, second], None)).word == "waiting"
        assert [question.id for question in worker.open()] == [second.id, again.id]
        assert worker.answer(first) == ["superseded"]
        assert worker.answer(again, second) == ["accepted"] * 2

    def test_a_running_node_learns_it_when_it_would_wait(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """A question that was withdrawn while its node ran is not opened again by the node's wait."""
        _, token = worker.begin("a")
        question = worker.ask(token)
        store.do(WithdrawQuestion(question.id, "", reask=True))

        reply = store.do(ParkVisit(token, [question], None))

        assert (reply.word, rung(reply)) == ("ready", ["a.1.1"])
        assert worker.open() == []

    @pytest.mark.parametrize("late", LATE)
    def test_a_late_answer_is_told_why_and_changes_nothing(
        self, worker: ManualWorker, store: Store, late: str
    ) -> None:
        """Its receipt has what became of the question, however often it comes, alone or in a set."""
        ending, (status, detail) = LATE[late]
        question = ending(worker)
        before, events = store.read(question.run_id), len(store.events(question.run_id))
        good = worker.park(worker.start("a"), "a")[0]

        for nonce in ("one", "two"):
            (receipt,) = store.do(
                AnswerQuestions([Decision(question.id, "yes", "bob")], nonce)
            ).receipts
            assert (receipt.status, receipt.detail) == (status, detail)
        # In a set it keeps the others from being applied.
        assert worker.answer(question, good) == [status, "rejected"]

        assert store.read(question.run_id) == before
        assert len(store.events(question.run_id)) == events
        assert [question.id for question in worker.open() if question.id == good.id]
