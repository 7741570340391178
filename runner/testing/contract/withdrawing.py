"""The contract of `withdraw`: a question is taken back, and perhaps asked anew."""

from __future__ import annotations

from dataclasses import replace

from runner.interrupts import InterruptStatus
from runner.ports import Store
from runner.testing.contract.worker import Worker, rung, shape


class WithdrawingContract:
    """What a store promises of questions that somebody takes back."""

    def test_a_withdrawn_question_wakes_its_node(self, worker: Worker, store: Store) -> None:
        """The node goes on and is told that the question was withdrawn, and why."""
        run_id = worker.start(shape("a"))
        (question,) = worker.park(run_id, "a")

        reply = store.withdraw(question.id, "wrong person", reask=False)

        assert (reply.word, rung(reply)) == ("withdrawn", ["a.1.1"])
        assert list(store.open_interrupts()) == []
        (told,) = worker.claim(run_id, "a").answers
        assert told.status is InterruptStatus.WITHDRAWN
        assert told.withdrawal == {"reason": "wrong person", "reask": False, "attempt": 1}
        assert [str(receipt.status) for receipt in worker.answer(question)] == ["superseded"]
        event = next(each for each in store.events(run_id) if each.kind == "interrupt.withdrawn")
        assert (event.detail, event.data) == (question.id, {"reason": "wrong person", "reask": False})

    def test_only_an_open_question_is_withdrawn(self, worker: Worker, store: Store) -> None:
        """An answered question stays answered; the same withdrawal twice is one."""
        run_id = worker.start(shape("a b", entries=["a", "b"]))
        (answered,) = worker.park(run_id, "a")
        (other,) = worker.park(run_id, "b")
        worker.answer(answered)

        assert store.withdraw(answered.id, "", reask=False).word == "closed"
        assert store.withdraw("00none.a.1.abc", "", reask=False).word == "unknown"
        assert store.withdraw("nonsense", "", reask=False).word == "unknown"
        assert store.withdraw(other.id, "", reask=True).word == "withdrawn"
        again = store.withdraw(other.id, "", reask=True)
        assert (again.word, rung(again)) == ("withdrawn", [])
        assert store.withdraw(other.id, "late", reask=True).word == "closed"

    def test_a_question_asked_anew_is_another_one(self, worker: Worker, store: Store) -> None:
        """The node may ask again under a new id, never the old one; other open questions stay open."""
        run_id = worker.start(shape("a"))
        first, second = worker.park(run_id, "a", "one", "two")

        assert rung(store.withdraw(first.id, "", reask=True)) == ["a.1.1"]

        token = worker.claim(run_id, "a").token
        anew = worker.asked(token, "one", reasked=1)
        assert anew.id != first.id
        assert store.park(token, [anew, second], None).word == "waiting"
        assert [each.id for each in store.open_interrupts()] == [second.id, anew.id]
        assert [str(receipt.status) for receipt in worker.answer(first)] == ["superseded"]
        assert [str(receipt.status) for receipt in worker.answer(anew, second)] == ["accepted"] * 2

    def test_without_asking_anew_the_rule_of_the_node_holds(self, worker: Worker, store: Store) -> None:
        """A node that waits for all its answers waits for the others still."""
        run_id = worker.start(shape("a"))
        first, second = worker.park(run_id, "a", "one", "two")

        assert rung(store.withdraw(first.id, "", reask=False)) == []
        worker.answer(second)

        assert {each.id for each in worker.claim(run_id, "a").answers} == {first.id, second.id}

    def test_a_running_node_learns_it_when_it_would_wait(self, worker: Worker, store: Store) -> None:
        """A question that was withdrawn while its node ran is not opened again by the node's wait."""
        run_id = worker.start(shape("a"))
        token = worker.claim(run_id, "a").token
        question = worker.asked(token)
        store.ask(token, [question], None)
        store.withdraw(question.id, "", reask=True)

        reply = store.park(token, [question], None)

        assert (reply.word, rung(reply)) == ("ready", ["a.1.1"])
        assert list(store.open_interrupts()) == []

    def test_a_withdrawn_question_does_not_expire(self, worker: Worker, store: Store) -> None:
        """Nothing waits for its time any more."""
        run_id = worker.start(shape("a"))
        (question,) = worker.park(run_id, "a", expires_in=10)
        store.withdraw(question.id, "", reask=False)
        worker.fail(worker.claim(run_id, "a").token)

        (found,) = store.interrupts([question.id])
        assert found is not None
        assert found.status is InterruptStatus.WITHDRAWN
        assert replace(found, withdrawal=None).is_decided is False
