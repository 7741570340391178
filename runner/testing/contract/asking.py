"""The contract of `ask`, `park` and `answer`."""

from __future__ import annotations

from runner.interrupts import Answer, Interrupt, InterruptStatus, Receipt, ReceiptStatus
from runner.ports import Store
from runner.run import Status
from runner.testing.clock import ManualClock
from runner.testing.contract.worker import Worker, rung, saved, shape


def said(receipts: list[Receipt]) -> list[str]:
    """Name what became of each answer."""
    return [str(receipt.status) for receipt in receipts]


class AskingContract:
    """Questions, waiting, and answers."""

    def test_a_question_is_open_as_soon_as_it_is_asked(
        self, worker: Worker, store: Store, clock: ManualClock
    ) -> None:
        """A running visit can publish a question at once; asking again changes nothing."""
        run_id = worker.start(shape("a"))
        token = worker.claim(run_id, "a").token
        question = worker.asked(token, reason={"amount": 5}, assignees=["ann"])

        assert store.ask(token, [question, question], saved(1)).word == "asked"
        asked = worker.read(run_id).interrupts
        clock.advance(1)
        assert store.ask(token, [question], None).word == "asked"

        assert [(each.id, each.reason, each.asked_at) for each in asked] == [
            (question.id, {"amount": 5}, clock.now - 1000)
        ]
        assert store.interrupts([question.id, "00none.a.1.x", "rubbish"]) == [asked[0], None, None]
        assert list(worker.read(run_id).interrupts) == list(store.open_interrupts()) == list(asked)
        assert worker.kinds(run_id).count("interrupt.asked a") == 1

    def test_a_waiting_node_holds_nothing(self, worker: Worker, store: Store, clock: ManualClock) -> None:
        """A parked visit waits without a lease for as long as it takes, while other branches run on."""
        run_id = worker.start(shape("a b", entries=["a", "b"]))
        worker.park(run_id, "a")
        assert worker.statuses(run_id) == "executing: a waiting, b ready"
        worker.run(run_id, "b")

        clock.advance(30 * 86_400)

        assert rung(store.sweep()) == []
        assert worker.statuses(run_id) == "interrupted: a waiting, b completed"

    def test_an_answer_makes_the_node_ready(self, worker: Worker, store: Store, clock: ManualClock) -> None:
        """An answered node is rung in the same step and finds the answer in its claim."""
        run_id = worker.start(shape("a"))
        token = worker.claim(run_id, "a").token
        question = worker.asked(token)
        store.park(token, [question], saved(1, "hello"))
        clock.advance(3)

        receipts, reply = store.answer([Answer(question.id, {"ok": False}, "ann", "key")], "n")

        assert receipts == [Receipt(ReceiptStatus.ACCEPTED, question.id, run_id)]
        assert rung(reply) == ["a.1.1"]
        claim = worker.claim(run_id, "a")
        (answered,) = claim.answers
        assert (answered.status, answered.response) == (InterruptStatus.ANSWERED, {"ok": False})
        assert (answered.responder, answered.idempotency_key) == ("ann", "key")
        assert answered.answered_at == clock.now
        assert (claim.document, list(claim.messages)) == ({"v": 1, "step": 1}, ["hello"])
        assert claim.token.fence > token.fence
        assert claim.record.unseen == 0
        assert not store.open_interrupts()

    def test_a_node_waits_for_all_its_answers(self, worker: Worker) -> None:
        """By default a node with several questions goes on when the last one is answered."""
        run_id = worker.start(shape("a"))
        one, two = worker.park(run_id, "a", "one", "two")
        worker.answer(two)
        assert worker.statuses(run_id) == "interrupted: a waiting"
        worker.answer(one)
        assert worker.statuses(run_id) == "executing: a ready"
        assert [each.name for each in worker.claim(run_id, "a").answers] == ["one", "two"]

    def test_a_node_may_go_on_at_each_answer(self, worker: Worker, store: Store) -> None:
        """With resume="each" every answer makes the node ready; it may wait again for the rest."""
        run_id = worker.start(shape("a", each=["a"]))
        one, two = worker.park(run_id, "a", "one", "two")
        worker.answer(one)
        token = worker.claim(run_id, "a").token

        assert store.park(token, [two], None).word == "waiting"
        worker.answer(two)
        assert [each.name for each in worker.claim(run_id, "a").answers] == ["one", "two"]

    def test_an_answer_to_a_running_node_wakes_it_when_it_parks(self, worker: Worker, store: Store) -> None:
        """No wake-up is lost: a node that parks after its answer came is ready at once."""
        run_id = worker.start(shape("a"))
        token = worker.claim(run_id, "a").token
        question = worker.asked(token)
        store.ask(token, [question], None)
        assert said(worker.answer(question)) == ["accepted"]
        assert worker.statuses(run_id) == "executing: a running"

        reply = store.park(token, [question], None)

        assert (reply.word, rung(reply)) == ("ready", ["a.1.1"])

    def test_an_answer_seen_does_not_wake_twice(self, worker: Worker, store: Store) -> None:
        """A claim has seen the answers so far: only a newer one wakes the node."""
        run_id = worker.start(shape("a", each=["a"]))
        one, two = worker.park(run_id, "a", "one", "two")
        worker.answer(one)

        assert store.park(worker.claim(run_id, "a").token, [one, two], None).word == "waiting"
        assert worker.statuses(run_id) == "interrupted: a waiting"

    def test_waiting_for_nothing_is_refused(self, worker: Worker, store: Store) -> None:
        """A node that would wait without an open question is refused and stays running."""
        run_id = worker.start(shape("a"))
        (question,) = worker.park(run_id, "a")
        worker.answer(question)
        token = worker.claim(run_id, "a").token

        assert store.park(token, [], None).word == "nothing_open"
        assert store.park(token, [question], None).word == "nothing_open"
        assert worker.statuses(run_id) == "executing: a running"

    def test_questions_left_out_are_withdrawn(self, worker: Worker, store: Store) -> None:
        """What a node asked and no longer waits for is withdrawn; it may be asked again."""
        run_id = worker.start(shape("a", each=["a"]))
        one, two = worker.park(run_id, "a", "one", "two")
        worker.answer(one)
        three = worker.asked(worker.claim(run_id, "a").token, "three")
        token = worker.read(run_id).nodes["a"]
        assert token.status is Status.RUNNING
        claim = store.claim(run_id, "a", 1, 1, token.nonce)

        assert store.park(claim.token, [three], None).word == "waiting"  # type: ignore[union-attr]
        assert [(each.name, each.status) for each in worker.read(run_id).interrupts] == [
            ("one", "answered"),
            ("two", "withdrawn"),
            ("three", "open"),
        ]
        assert said(worker.answer(two)) == ["superseded"]
        worker.answer(three)
        again = worker.claim(run_id, "a").token
        assert store.park(again, [two], None).word == "waiting"
        assert [each.name for each in worker.read(run_id).interrupts] == ["one", "three", "two"]
        assert said(worker.answer(two)) == ["accepted"]

    def test_a_repeated_park_gets_the_first_word(self, worker: Worker, store: Store) -> None:
        """A park whose reply was lost can be repeated, even when the answer has come since."""
        run_id = worker.start(shape("a"))
        token = worker.claim(run_id, "a").token
        question = worker.asked(token)

        words = [store.park(token, [question], saved(1)).word for _ in range(2)]
        worker.answer(question)

        assert [*words, store.park(token, [question], saved(1)).word] == ["waiting", "waiting", "ready"]

    def test_an_answer_counts_once(self, worker: Worker, store: Store) -> None:
        """A second answer is a duplicate; the same request, or the same key, gets its receipt again."""
        run_id = worker.start(shape("a"))
        (question,) = worker.park(run_id, "a")
        first = [Answer(question.id, 1, "ann", "key")]

        assert said(store.answer(first, "n1")[0]) == ["accepted"]
        assert said(store.answer([Answer(question.id, 2)], "n1")[0]) == ["accepted"]
        assert said(store.answer([Answer(question.id, 2, None, "key")], "n2")[0]) == ["accepted"]
        (late,) = store.answer([Answer(question.id, 2, "bob")], "n3")[0]
        assert (late.status, late.detail) == (ReceiptStatus.DUPLICATE, "already answered by ann")
        assert [each.response for each in worker.claim(run_id, "a").answers] == [1]

    def test_a_set_of_answers_applies_whole_or_not_at_all(self, worker: Worker, store: Store) -> None:
        """One answer that can't be used keeps the whole set from being applied."""
        run_id = worker.start(shape("a b", entries=["a", "b"]))
        (one,), (two,) = worker.park(run_id, "a"), worker.park(run_id, "b", assignees=["ann"])
        before = worker.read(run_id)

        assert said(worker.answer(one, two)) == ["rejected", "forbidden"]
        assert said(worker.answer(one, one)) == ["rejected", "rejected"]
        unknown = [Answer(one.id, 1), Answer("00none.a.1.x", 1), Answer("rubbish", 1)]
        assert said(store.answer(unknown, "n")[0]) == ["rejected", "unknown", "unknown"]
        assert worker.read(run_id) == before
        assert said(worker.answer(one, two, responder="ann")) == ["accepted", "accepted"]
        assert worker.statuses(run_id) == "executing: a ready, b ready"

    def test_a_set_may_answer_several_runs(self, worker: Worker, store: Store) -> None:
        """Answers to questions of different runs and nodes are one set, too."""
        graph = shape("a b", entries=["a", "b"])
        runs = [worker.start(graph), worker.start(graph)]
        asked = [worker.park(run_id, node, "x", "y") for node in ("a", "b") for run_id in runs]
        mixed = [question for pair in zip(*asked, strict=True) for question in pair]

        receipts, reply = store.answer([Answer(each.id, 1) for each in mixed], "n")

        assert said(receipts) == ["accepted"] * 8
        assert sorted(bell.task_id for bell in reply.doorbells) == [
            f"{run_id}.{node}.1.1" for run_id in sorted(runs) for node in "ab"
        ]

    def test_an_approval_holds_for_what_was_shown(self, worker: Worker) -> None:
        """An answer with the digest of another question is rejected, and the question stays open."""
        run_id = worker.start(shape("a"))
        (question,) = worker.park(run_id, "a")

        assert said(worker.answer(question, digest="sha256:other")) == ["rejected"]
        assert said(worker.answer(question, digest=question.digest)) == ["accepted"]

    def test_a_question_that_settles_unanswered_is_withdrawn(self, worker: Worker, store: Store) -> None:
        """A node that ends closes its open questions."""
        run_id = worker.start(shape("a"))
        token = worker.claim(run_id, "a").token
        question: Interrupt = worker.asked(token, expires_in=60)
        store.ask(token, [question], None)
        worker.settle(token)

        assert [each.status for each in worker.read(run_id).interrupts] == [InterruptStatus.WITHDRAWN]
        assert said(worker.answer(question)) == ["superseded"]
        assert not store.open_interrupts()
