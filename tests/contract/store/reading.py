"""The contract of listings, snapshots and events."""

from __future__ import annotations

import threading

import pytest

from runner.errors import NotFoundError
from runner.records import codec
from runner.records.codec import JSON
from runner.records.run import EventKind, Status, VisitEntry
from runner.store.interface import RunSnapshot, Settlement
from runner.store.requests import EmitEvent, RetryVisit, SettleVisit
from tests.contract.store.manual_worker import failure, shape

INNER = shape("x", name="g/a")
DONE = Settlement(Status.COMPLETED, "1", None, {"v": 1})


class ReadingContract:
    """What can be seen of runs."""

    @pytest.mark.scripts
    def test_a_snapshot_holds_the_whole_run(self, worker):
        """A run is read in one go: records, task, order, outputs, entries, questions, times."""
        run_id = worker.start("a>b", {"t": 1}, invocation_state={"g": 2}, trace="00-1-2-01")
        worker.clock.advance(2)
        worker.run(run_id, "a", "b")

        snapshot = worker.read(run_id)

        assert (snapshot.record.status, snapshot.record.trace) == (
            Status.COMPLETED,
            "00-1-2-01",
        )
        assert (snapshot.task, snapshot.invocation_state) == ({"t": 1}, {"g": 2})
        assert snapshot.ended_at - snapshot.created_at == 2000
        assert list(snapshot.order) == ["a", "b"]
        assert snapshot.outputs == {("a", 1): "a", ("b", 1): "b"}
        assert sorted(snapshot.entries) == [("a", 1), ("b", 1)]

    def test_large_values_are_read_as_they_were_written(self, worker, store):
        """A large task, output or entry reaches claims, conditions and readers whole, in child runs, too."""
        task, output = {"much": "t" * 200_000}, ["ö@ " * 100_000]
        run_id, token = worker.begin("a>b", task=task, invocation_state=task)
        entry: VisitEntry = {"v": 1, "kind": "function", "ms": 1, "result": output[0]}
        store.do(SettleVisit(token, Settlement(Status.COMPLETED, "1", output, entry), "n"))

        claim = worker.claim(run_id, "b")
        ((source, _, value),) = claim.inputs
        assert (codec.read(claim.task), claim.invocation_state) == (task, task)
        assert (source, codec.read(value)) == ("a", output)
        assert store.fetch(run_id, ["a", "b"])[0][1:] == (output, entry)
        child = worker.start(
            shape("x", name="inner"), output, invocation_state=task, parent=claim.token
        )
        inner = worker.claim(child, "x")
        assert (codec.read(inner.task), inner.invocation_state) == (output, task)
        worker.settle(inner.token, output)
        again = worker.claim(run_id, "b").child
        assert again is not None
        assert codec.read(again.task) == codec.read(again.outputs["x", 1]) == output
        assert worker.read(run_id).outputs == {("a", 1): output}
        assert worker.read(run_id).entries == {("a", 1): entry}
        assert [event.data for event in worker.events(run_id, "node.completed")] == [
            None,
            None,
        ]

    @pytest.mark.routed
    def test_a_peek_is_the_record_of_a_read(self, worker, store):
        """Reading a run's own record costs no reading of its nodes, and returns the same."""
        run_id = worker.start("a>b")
        worker.park(run_id, "a")

        assert store.peek(run_id) == worker.read(run_id).record
        assert (store.peek("00none"), store.read("00none"), store.children("00none")) == (
            None,
            None,
            [],
        )
        with pytest.raises(NotFoundError, match="00none"):
            store.fetch("00none", ["a"])

    def test_an_event_has_an_empty_answer(self, worker, store):
        """An answer that is an empty list, text or number is in its event like any other."""
        responses: list[JSON] = [[], {}, "", 0, False]
        for response in responses:
            run_id = worker.start("a")
            worker.answer(*worker.park(run_id, "a"), response=response)
            (event,) = worker.events(run_id, "interrupt.answered")
            assert event.data == {"response": response}

    def test_events_carry_what_they_are_about(self, worker, store):
        """The events of a question, an answer, a retry, a failure and a result have the data of it."""
        run_id, question = worker.asking(
            "a b c", reason={"sum": 5}, assignees=["ann"], expires_in=60
        )
        worker.answer(question, response={"fine": True}, responder="ann")
        worker.settle(worker.token(run_id, "a"), {"paid": 5})
        store.do(RetryVisit(worker.token(run_id, "b"), 700, failure(), None))
        worker.settle(worker.token(run_id, "c"), "x" * 2000)
        worker.sweep(after=1)
        worker.fail(worker.token(run_id, "b", attempt=2))

        details = [
            (f"{e.kind} {e.node}", e.detail, e.data)
            for e in store.events(run_id)
            if e.data or e.detail
        ]
        reason = {"name": "ok?", "assignees": ["ann"], "reason": {"sum": 5}}
        for event in [
            ("run.started ", "g", None),
            ("node.started a", "1", None),
            ("interrupt.asked a", question.id, reason),
            (
                "interrupt.answered a",
                question.id,
                {"response": {"fine": True}, "responder": "ann"},
            ),
            ("node.completed a", "", {"paid": 5}),
            ("node.retrying b", "700", {"error": "ValueError: broken"}),
            ("node.failed b", "", {"error": "ValueError: broken"}),
            ("run.ended ", "failed", None),
        ]:
            assert event in details
        # A long value is in the run alone.
        assert not [event for event in details if event[0] == "node.completed c"]

    @pytest.mark.scripts
    def test_a_receipt_is_read_as_it_was_emitted(self, worker, store):
        """The event of a receipt has all that its door said, whichever run and question it names."""
        run_id, question = worker.asking("a")
        receipts: list[JSON] = [
            {"status": "accepted", "interrupt_id": question.id, "run_id": run_id, "detail": ""},
            {
                "status": "rejected",
                "interrupt_id": question.id,
                "run_id": run_id,
                "detail": "no",
            },
            {"status": "unknown", "interrupt_id": question.id, "run_id": None, "detail": ""},
            {"status": "started", "run_id": run_id, "detail": ""},
        ]
        for data in receipts:
            store.do(EmitEvent(run_id, EventKind.RECEIPT, "a", 1, data))

        assert [event.data for event in store.events(run_id)[-4:]] == receipts

    def test_events_can_be_read_on_from_any_position(self, worker, store):
        """A reader passes the last position it has and gets what came after."""
        run_id = worker.start("a")
        worker.run(run_id, "a")
        everything = store.events(run_id)

        for place, event in enumerate(everything):
            assert store.events(run_id, event.position) == everything[place + 1 :]
        assert store.events(run_id, limit=2) == everything[:2]
        assert store.events("00none", wait=5) == []

    @pytest.mark.scripts
    def test_a_node_can_add_events(self, worker, store):
        """What a node emits stands among the run's events, with its data."""
        run_id = worker.start("a")
        store.do(EmitEvent(run_id, EventKind.PROGRESS, "a", 1, {"fraction": 0.5}))
        store.do(EmitEvent("00none", "progress", "a", 1, None))

        event = store.events(run_id)[-1]
        assert (event.kind, event.node, event.visit, event.data) == (
            "progress",
            "a",
            1,
            {"fraction": 0.5},
        )
        assert {type(event.kind) for event in store.events(run_id)} == {str}
        empty: list[JSON] = [[], {}, 0, "", False, None]
        for data in empty:
            store.do(EmitEvent(run_id, "progress", "a", 1, data))
        assert [event.data for event in store.events(run_id)[-6:]] == empty

    @pytest.mark.full
    def test_a_run_keeps_its_last_events(self, worker, store):
        """Old events go, some thousands stay, and their numbers go on."""
        run_id = worker.start("a")
        for number in range(11_500):
            store.do(EmitEvent(run_id, "progress", "a", 1, number))

        last = store.events(run_id, "11490")
        assert [event.data for event in last][-1] == 11_499
        assert int(last[-1].position) - int(last[0].position) == len(last) - 1
        first = store.events(run_id, limit=1)[0]
        assert 1 < int(first.position) <= 1_501

    def test_readers_can_wait_for_the_next_event(self, worker, store):
        """Each waiting reader gets an event as soon as there is one, and nothing when its time is over."""
        run_id = worker.start("a")
        last = store.events(run_id)[-1].position
        assert store.events(run_id, last, wait=0.01) == []
        kinds: list[str] = []

        def watch() -> None:
            kinds.extend(event.kind for event in store.events(run_id, last, wait=20))

        readers = [threading.Thread(target=watch) for _ in range(2)]
        for reader in readers:
            reader.start()
        store.do(EmitEvent(run_id, "progress", "a", 1, None))
        for reader in readers:
            reader.join(20)

        assert kinds == ["progress", "progress"]

    def test_readers_can_wait_until_a_run_rests(self, worker, store):
        """A reader waits through all that a run does, until it ends, or waits itself; then none waits."""
        run_id = worker.start(shape("a b", "ab"))
        assert store.read_unless_executing(run_id, wait=0.01) is None
        replies: list[RunSnapshot | None] = []
        readers = [
            threading.Thread(
                target=lambda: replies.append(store.read_unless_executing(run_id, wait=20))
            )
            for _ in range(2)
        ]
        for reader in readers:
            reader.start()
        worker.run(run_id, "a")
        assert all(reader.is_alive() for reader in readers)
        (question,) = worker.park(run_id, "b")
        for reader in readers:
            reader.join(20)

        assert (
            replies
            == [store.read(run_id)] * 2
            == [store.read_unless_executing(run_id, wait=20)] * 2
        )
        worker.answer(question)
        assert store.read_unless_executing(run_id) is None
        worker.run(run_id, "b")
        assert (
            store.read_unless_executing(run_id)
            == store.read_unless_executing(run_id, wait=20)
            == store.read(run_id)
        )
        with pytest.raises(NotFoundError):
            store.read_unless_executing("00none", wait=20)

    @pytest.mark.routed
    def test_what_is_read_is_a_copy(self, worker, store):
        """Changing what was read, or what was passed in, changes nothing that is stored."""
        task = {"list": [1]}
        run_id = worker.start("a", task)
        task["list"].append(2)
        worker.read(run_id).task["list"].append(3)

        assert worker.read(run_id).task == {"list": [1]}
        assert worker.claim(run_id, "a").task == {"list": [1]}
        assert store.graphs() == {"g": shape("a").fingerprint}
