"""Answers to whatever may have become of a question, alone and in every pair, on both stores (F20)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.definition.registry import Registry
from runner.execution.engine import Engine
from runner.operations.answers import apply_decisions
from runner.records.checkpoints import Saved
from runner.records.interrupts import Decision, Interrupt, ReceiptStatus
from runner.records.run import Status
from runner.store.memory.store import MemoryStore
from runner.store.redis.store import RedisStore
from runner.store.requests import AnswerQuestions, AskQuestions, CancelRun, WithdrawQuestion
from runner.testing import ManualClock
from tests.contract.store import ManualWorker
from tests.contract.store.manual_worker import shape

EXPECTED = {
    "open": ReceiptStatus.ACCEPTED,
    "open, too": ReceiptStatus.ACCEPTED,
    "asked while its node runs": ReceiptStatus.ACCEPTED,
    "answered": ReceiptStatus.DUPLICATE,
    "answered, its run ended": ReceiptStatus.DUPLICATE,
    "expired": ReceiptStatus.EXPIRED,
    "overdue": ReceiptStatus.EXPIRED,
    "taken back": ReceiptStatus.SUPERSEDED,
    "left by its node": ReceiptStatus.SUPERSEDED,
    "of a cancelled run": ReceiptStatus.SUPERSEDED,
    "of a failed run": ReceiptStatus.SUPERSEDED,
    "of an older visit": ReceiptStatus.SUPERSEDED,
    "not asked yet": ReceiptStatus.UNKNOWN,
    "of no run": ReceiptStatus.UNKNOWN,
    "no question at all": ReceiptStatus.UNKNOWN,
}
PAIRS = [(one, other) for one in EXPECTED for other in EXPECTED if one != other]


class Cases:
    """One question of every kind in one store, and an engine to answer at."""

    def __init__(self, store, clock) -> None:
        self.worker, self.store, self.bells = ManualWorker(store), store, []
        self.engine = Engine(store, self, Registry())
        self.questions = {
            "expired": self.asked(expires_in=5.0),
            "answered": self.asked(),
            "taken back": self.asked(),
            "of a cancelled run": self.asked(),
            "open": self.asked(),
            "open, too": self.asked(),
            "asked while its node runs": self.running(),
            "answered, its run ended": self.ended(),
            "left by its node": self.left(),
            "of a failed run": self.failed(),
            "of an older visit": self.older(),
        }
        clock.advance(6)
        store.sweep()
        self.worker.answer(self.questions["answered"], responder="first")
        store.do(WithdrawQuestion(self.questions["taken back"].id, "no need", reask=False))
        store.do(CancelRun(self.questions["of a cancelled run"].run_id, "enough"))
        self.questions["overdue"] = self.asked(expires_in=5.0)
        clock.advance(5)  # and no sweep yet
        asks = self.questions["open"]
        self.questions["not asked yet"] = replace(asks, id=asks.id[:-4] + "beef")
        self.questions["of no run"] = replace(asks, id="00nobody.a.1.0123456789abcdef")
        self.questions["no question at all"] = replace(asks, id="hello")

    def ring(self, doorbells) -> None:
        self.bells += doorbells

    def asked(self, **said) -> Interrupt:
        run_id = self.worker.start(shape("a"))
        return self.worker.park(run_id, "a", **said)[0]

    def running(self) -> Interrupt:
        token = self.worker.claim(self.worker.start(shape("a")), "a").token
        question = self.worker.question(token)
        self.store.do(AskQuestions(token, [question], Saved({"v": 1})))
        return question

    def ended(self) -> Interrupt:
        question = self.asked()
        self.worker.answer(question, responder="first")
        self.worker.run(question.run_id, "a")
        return question

    def left(self) -> Interrupt:
        token = self.worker.claim(self.worker.start(shape("a")), "a").token
        question = self.worker.question(token)
        self.store.do(AskQuestions(token, [question], None))
        self.worker.settle(token)
        return question

    def failed(self) -> Interrupt:
        run_id = self.worker.start(shape("a b", entries=["a", "b"], name="two"))
        question = self.worker.park(run_id, "a")[0]
        self.worker.fail(self.worker.claim(run_id, "b").token)
        return question

    def older(self) -> Interrupt:
        run_id = self.worker.start(shape("a>a a>b", name="loop"))
        token = self.worker.claim(run_id, "a").token
        question = self.worker.question(token)
        self.store.do(AskQuestions(token, [question], None))
        self.worker.settle(token, edges="10")
        self.worker.park(run_id, "a", visit=2)
        return question

    def answer(self, *kinds: str) -> list[ReceiptStatus]:
        """Answer questions of some kinds as one set."""
        answers = [Decision(self.questions[kind].id, "yes", responder="late") for kind in kinds]
        return [receipt.status for receipt in apply_decisions(self.engine, answers)]

    def everything(self) -> list:
        """Read all runs, questions and events."""
        found = [run.run_id for run in self.store.runs()]
        return [(self.store.read(run_id), self.store.events(run_id)) for run_id in found]


@pytest.fixture(params=["memory", "redis"])
def cases(request):
    """Every kind of question, in either store."""
    clock = ManualClock()
    if request.param == "memory":
        yield Cases(MemoryStore(clock=clock, lease=30), clock)
        return
    store = RedisStore(request.getfixturevalue("redis_url"), clock=clock, lease=30, push=False)
    yield Cases(store, clock)
    store.close()


@pytest.mark.full
def test_an_answer_that_comes_too_late_changes_nothing_and_is_told_why(cases):
    """Answers to what is no longer open, or never was, have no effect, alone and in any set of two."""
    assert set(cases.questions) == set(EXPECTED)
    before = cases.everything()

    for kind, told in EXPECTED.items():
        if told is not ReceiptStatus.ACCEPTED:
            assert cases.answer(kind) == [told], kind
    for pair in PAIRS:
        alone = [EXPECTED[kind] for kind in pair]
        if set(alone) != {ReceiptStatus.ACCEPTED}:
            assert cases.answer(*pair) == [
                ReceiptStatus.REJECTED if told is ReceiptStatus.ACCEPTED else told
                for told in alone
            ], pair

    assert cases.everything() == before
    assert cases.bells == []


@pytest.mark.full
def test_answers_to_what_is_open_are_taken_as_one_set(cases):
    """Two open questions take their answers together, also while the node of one still runs."""
    assert cases.answer("open", "asked while its node runs") == [ReceiptStatus.ACCEPTED] * 2
    assert cases.answer("open", "open, too") == [
        ReceiptStatus.DUPLICATE,
        ReceiptStatus.REJECTED,
    ]
    assert cases.answer("open, too") == [ReceiptStatus.ACCEPTED]

    assert [bell.run_id for bell in cases.bells] == [
        cases.questions[kind].run_id for kind in ("open", "open, too")
    ]
    running = cases.questions["asked while its node runs"]
    assert cases.store.read(running.run_id).nodes["a"].status is Status.RUNNING


class AnyPart(MemoryStore):
    """A store without the promise of sets: each answer counts for itself."""

    def do(self, request):
        if not isinstance(request, AnswerQuestions) or len(request.answers) == 1:
            return super().do(request)
        replies = [self.do(replace(request, answers=[answer])) for answer in request.answers]
        receipts = [receipt for reply in replies for receipt in reply.receipts]
        return replace(replies[0], receipts=receipts)


def test_a_store_that_takes_a_part_of_a_set_is_noticed():
    """The control: where the good half of a set is applied, the table of pairs says so."""
    clock = ManualClock()
    with pytest.raises(AssertionError, match="open"):
        test_an_answer_that_comes_too_late_changes_nothing_and_is_told_why(
            Cases(AnyPart(clock=clock, lease=30), clock)
        )
