"""The contract of questions: `ask`, `park`, `answer`, `withdraw`, and answers that come too late."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from runner.records.interrupts import (
    Decision,
    Interrupt,
    InterruptStatus,
    Receipt,
    ReceiptStatus,
)
from runner.records.run import Status
from runner.store.interface import Token
from runner.store.requests import (
    AnswerQuestions,
    AskQuestions,
    CancelRun,
    ParkVisit,
    WithdrawQuestion,
)
from tests.contract.store.manual_worker import ManualWorker, rung, saved, shape
from tests.contract.store.stories import Story, stories, tell

EACH = shape("a", resume_each=["a"])

STORIES = {
    "a node with several questions goes on when the last one is answered": (
        "a",
        """
        claim a
        park a one two
        answer two
        stands = interrupted: a waiting
        answer one
        stands = executing: a ready
        claim a
        answers a = one answered, two answered
        """,
    ),
    "a node that waits holds nothing, however long; other branches run on": (
        "a b",
        """
        claim a
        park a
        stands = executing: a waiting, b ready
        run b
        sweep 2592000
        stands = interrupted: a waiting, b completed
        """,
    ),
    "an answer to a running node wakes it when it parks": (
        "a",
        """
        claim a
        ask a
        answer a
        stands = executing: a running
        park a = ready
        rings = a.1.1
        """,
    ),
    "a claim has seen the answers so far: only a newer one wakes the node": (
        EACH,
        """
        claim a
        park a one two
        answer one
        claim a
        park a one two
        stands = interrupted: a waiting
        """,
    ),
    "only an open question is withdrawn; the same withdrawal twice is one": (
        "a b",
        """
        claim a
        park a
        claim b
        park b
        answer a
        withdraw a = closed
        withdraw b
        rings = b.1.1
        withdraw b
        rings
        """,
    ),
    'with resume="each" every answer makes the node ready; it may wait again for the others': (
        EACH,
        """
        claim a
        park a one two
        answer one
        claim a
        park a two
        answer two
        claim a
        answers a = one answered, two answered
        """,
    ),
    "a node that would wait without an open question is refused, and runs on": (
        "a",
        """
        claim a
        park a one
        answer one
        claim a
        park a nothing = nothing_open
        park a one = nothing_open
        stands = executing: a running
        """,
    ),
    "a park whose reply was lost can be repeated, also when the answer has come since": (
        "a",
        """
        claim a
        park a one
        park a one
        answer one
        park a one = ready
        """,
    ),
    "a question that is withdrawn while its node runs is not opened by the node's wait": (
        "a",
        """
        claim a
        ask a one
        withdraw one
        park a one = ready
        rings = a.1.1
        open
        """,
    ),
    "a question that is withdrawn may be asked again under a new id; others stay open": (
        "a",
        """
        claim a
        park a one two
        withdraw one
        rings = a.1.1
        claim a
        answer one = superseded
        park a one two
        open = two one
        answer one two = accepted accepted
        """,
    ),
    "what a node asked and no longer waits for is withdrawn; asked again, it has a new id": (
        EACH,
        """
        claim a
        park a one two
        answer one
        claim a
        park a three
        statuses one two three = answered withdrawn open
        answer two = superseded
        answer three
        claim a
        answers a = one answered, two withdrawn, three answered
        park a two
        open = two
        answer two
        """,
    ),
}


def _statuses(receipts: Sequence[Receipt]) -> list[str]:
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


OVER = ("expired", "the time to answer is over")
WITHDRAWN = ("superseded", "the question was withdrawn")
UNKNOWN = ("unknown", "no such question was asked")


def _other(name: str) -> Ending:
    def ending(worker: ManualWorker) -> Interrupt:
        run_id, question = worker.asking("a")
        return replace(question, id=name.format(run_id))

    return ending


LATE: dict[str, tuple[Ending, tuple[str, str]]] = {
    "answered": (
        _parked(lambda worker, question: worker.answer(question, responder="ann")),
        ("duplicate", "already answered by ann"),
    ),
    "expired": (_parked(lambda worker, _: worker.sweep(after=60), expires_in=60), OVER),
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
    "of a run that completed": (
        _parked(
            lambda worker, own: (
                worker.answer(own, responder="ann") and worker.run(own.run_id, "a", "b")
            )
        ),
        ("duplicate", "already answered by ann"),
    ),
    "never asked": (_other("{}.a.1.0123456789abcdef"), UNKNOWN),
    "of no run": (_other("00none.a.1.0123456789abcdef"), UNKNOWN),
    "no question": (_other("hello"), UNKNOWN),
    "expired unnoticed": (
        _parked(lambda worker, _: worker.clock.advance(60), expires_in=60),
        OVER,
    ),
}


class AskingContract:
    """Questions, waiting, answers and withdrawals."""

    @stories(STORIES)
    def test_a_question_goes_on_as_its_story_says(self, worker, graph, story):
        """What a node waits for, and what makes it ready."""
        tell(Story(worker, graph), story)

    def test_a_question_is_open_as_soon_as_it_is_ask(self, worker, store):
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

    def test_an_answer_makes_the_node_ready(self, worker, store):
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

    def test_a_withdrawn_id_is_never_opened_again(self, worker, store):
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

    def test_an_answer_counts_once(self, worker, store):
        """A second answer is a duplicate; the same one, by request or key, gets its receipt again."""
        run_id, question = worker.asking("a")
        first = [Decision(question.id, 1, "ann", "key")]

        assert _statuses(store.do(AnswerQuestions(first, "n1")).receipts) == ["accepted"]
        assert _statuses(
            store.do(AnswerQuestions([Decision(question.id, 2)], "n1")).receipts
        ) == ["accepted"]
        for response, who, status in (
            (1, "ann", "accepted"),
            (2, "ann", "rejected"),
            (1, "bob", "rejected"),
        ):
            again = [Decision(question.id, response, who, "key")]
            assert _statuses(store.do(AnswerQuestions(again, "n2")).receipts) == [status]
        (late,) = store.do(AnswerQuestions([Decision(question.id, 2, "bob")], "n3")).receipts
        assert (late.status, late.detail) == (
            ReceiptStatus.DUPLICATE,
            "already answered by ann",
        )
        assert [answer.response for answer in worker.claim(run_id, "a").answers] == [1]

    def test_a_set_of_answers_applies_whole_or_not_at_all(self, worker, store):
        """One answer that can't be used keeps the whole set from being applied."""
        run_id = worker.start("a b")
        (one,), (two,) = worker.park(run_id, "a"), worker.park(run_id, "b", assignees=["ann"])
        before = worker.read(run_id)

        assert worker.answer(one, two) == ["rejected", "forbidden"]
        assert worker.answer(one, one) == ["rejected", "rejected"]
        unknown = [Decision(one.id, 1), Decision("00none.a.1.x", 1), Decision("malformed", 1)]
        assert _statuses(store.do(AnswerQuestions(unknown, "n")).receipts) == [
            "rejected",
            "unknown",
            "unknown",
        ]
        assert worker.read(run_id) == before
        assert worker.answer(one, two, responder="ann") == ["accepted", "accepted"]
        assert worker.statuses(run_id) == "executing: a ready, b ready"

    def test_a_set_may_answer_several_runs(self, worker, store):
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

        assert _statuses(receipts) == ["accepted"] * 8
        assert sorted(bell.task_id for bell in reply.doorbells) == [
            f"{run_id}.{node}.1.1" for run_id in sorted(runs) for node in "ab"
        ]

    def test_an_approval_holds_for_what_was_shown(self, worker):
        """An answer with the digest of another question is rejected, and the question stays open."""
        _, question = worker.asking("a")

        assert worker.answer(question, digest="sha256:other") == ["rejected"]
        assert worker.answer(question, digest=question.digest) == ["accepted"]

    @pytest.mark.routed
    def test_a_withdrawn_question_wakes_its_node(self, worker, store):
        """The node goes on, and its claim has the withdrawal with its reason."""
        run_id, question = worker.asking("a")

        reply = store.do(WithdrawQuestion(question.id, "wrong person", reask=False))

        assert (reply.word, rung(reply)) == ("withdrawn", ["a.1.1"])
        assert worker.open() == []
        (answer,) = worker.claim(run_id, "a").answers
        assert answer.status is InterruptStatus.WITHDRAWN
        assert answer.withdrawal == {"reason": "wrong person", "reask": False, "attempt": 1}
        assert worker.answer(question) == ["superseded"]
        event = next(event for event in worker.events(run_id, "interrupt.withdrawn"))
        assert (event.detail, event.data) == (
            question.id,
            {"reason": "wrong person", "reask": False},
        )

    def test_an_answer_that_comes_too_late_changes_nothing_and_is_told_why(self, worker, store):
        """Answers to what is no longer open, or never was, have no effect, alone and in any set of two."""
        questions = {name: ending(worker) for name, (ending, _) in LATE.items()}
        told = {name: what for name, (_, what) in LATE.items()}
        questions |= {name: worker.asking("a")[1] for name in ("open", "open, too")}
        questions["asked while its node runs"] = worker.ask(worker.begin("a")[1])

        def everything():
            return [(worker.read(run_id), store.events(run_id)) for run_id in worker.runs]

        before = everything()
        for name, what in told.items():
            for nonce in (f"{name} 1", f"{name} 2"):
                late = [Decision(questions[name].id, "yes", "bob")]
                (receipt,) = store.do(AnswerQuestions(late, nonce)).receipts
                assert (receipt.status, receipt.detail) == what, name
        for pair in itertools.permutations(questions, 2):
            if not told.keys().isdisjoint(pair):
                words = [told.get(name, ("rejected",))[0] for name in pair]
                assert worker.answer(*(questions[name] for name in pair)) == words, pair
        assert everything() == before

        one, other, running = (questions[name] for name in questions if name not in told)
        assert worker.answer(one, running) == ["accepted"] * 2
        assert worker.answer(one, other) == ["duplicate", "rejected"]
        assert worker.answer(other) == ["accepted"]
        assert worker.read(running.run_id).nodes["a"].status is Status.RUNNING
