"""The contract of listings, snapshots and events."""

from __future__ import annotations

import threading

import pytest

from runner.errors import NotFoundError
from runner.listings import RunQuery, RunSummary
from runner.ports import Settlement, Store
from runner.run import Status
from runner.testing.clock import ManualClock
from runner.testing.contract.worker import Worker, failure, shape


class ReadingContract:
    """What can be seen of runs."""

    def test_runs_are_listed_newest_first(self, worker: Worker, store: Store, clock: ManualClock) -> None:
        """A listing can be limited, and cut to one status, which changes as runs do."""
        graph = shape("a")
        first = worker.start(graph, tags={"team": "a"})
        clock.advance(1)
        second, third = worker.start(graph), worker.start(graph)
        worker.run(second, "a")
        worker.park(third, "a")

        assert [each.run_id for each in store.runs()] == [third, second, first]
        assert [each.run_id for each in store.runs(limit=2)] == [third, second]
        assert list(store.runs(RunQuery(Status.EXECUTING))) == [
            RunSummary(first, "g", Status.EXECUTING, clock.now - 1000, {"team": "a"}, graph.fingerprint)
        ]
        assert [each.run_id for each in store.runs(RunQuery(Status.COMPLETED))] == [second]
        assert [each.run_id for each in store.runs(RunQuery(Status.INTERRUPTED))] == [third]

    def test_open_questions_are_listed_oldest_first(
        self, worker: Worker, store: Store, clock: ManualClock
    ) -> None:
        """The list of open questions spans all runs and can be limited."""
        graph = shape("a")
        asked = []
        for _ in range(3):
            asked += worker.park(worker.start(graph), "a")
            clock.advance(1)

        assert [each.id for each in store.open_interrupts()] == [each.id for each in asked]
        assert [each.id for each in store.open_interrupts(limit=2)] == [each.id for each in asked[:2]]

    def test_a_snapshot_holds_the_whole_run(self, worker: Worker, clock: ManualClock) -> None:
        """A run is read in one go: records, task, order, outputs, entries, questions, times."""
        run_id = worker.start(shape("a>b"), {"t": 1}, given={"g": 2})
        clock.advance(2)
        worker.run(run_id, "a", "b")

        found = worker.read(run_id)

        assert found.record.status is Status.COMPLETED
        assert (found.task, found.given) == ({"t": 1}, {"g": 2})
        assert found.ended_at - found.created_at == 2000
        assert list(found.order) == ["a", "b"]
        assert found.outputs == {("a", 1): "a", ("b", 1): "b"}
        assert sorted(found.entries) == [("a", 1), ("b", 1)]

    def test_large_values_are_read_as_they_were_written(self, worker: Worker, store: Store) -> None:
        """A large task, output or entry reaches claims, conditions and readers whole, in child runs, too."""
        task, output = {"much": "t" * 200_000}, ["ö@ " * 100_000]
        run_id = worker.start(shape("a>b"), task, given=task)
        token = worker.claim(run_id, "a").token
        entry = {"v": 1, "kind": "function", "ms": 1, "result": output[0]}
        store.settle(token, Settlement(Status.COMPLETED, "1", output, entry), "n")

        claim = worker.claim(run_id, "b")
        assert (claim.task, claim.given, list(claim.inputs)) == (task, task, [("a", 1, output)])
        assert store.fetch(run_id, ["a", "b"])[0][1:] == (output, entry)
        child = worker.start(shape("x", name="inner"), output, given=task, parent=claim.token)
        inner = worker.claim(child, "x")
        assert (inner.task, inner.given) == (output, task)
        worker.settle(inner.token, output)
        again = worker.claim(run_id, "b").child
        assert again is not None
        assert (again.task, again.outputs) == (output, {("x", 1): output})
        assert worker.read(run_id).outputs == {("a", 1): output}
        assert worker.read(run_id).entries == {("a", 1): entry}
        assert [event.data for event in store.events(run_id) if event.kind == "node.completed"] == [
            None,
            None,
        ]

    def test_a_peek_is_the_record_of_a_read(self, worker: Worker, store: Store) -> None:
        """Reading a run's own record costs no reading of its nodes, and says the same."""
        run_id = worker.start(shape("a>b"))
        worker.park(run_id, "a")

        assert store.peek(run_id) == worker.read(run_id).record
        assert (store.peek("00none"), store.read("00none"), store.children("00none")) == (None, None, [])

    def test_reading_nodes_of_no_run_is_an_error(self, store: Store) -> None:
        """Conditions of a run that is gone are told so."""
        with pytest.raises(NotFoundError, match="00none"):
            store.fetch("00none", ["a"])

    def test_events_tell_what_happened(self, worker: Worker, store: Store, clock: ManualClock) -> None:
        """A run's events are complete, in order, and have the store's time."""
        run_id = worker.start(shape("a>b a>c"))
        clock.advance(1)
        worker.run(run_id, "a", edges="10")
        worker.answer(*worker.park(run_id, "b"))
        worker.run(run_id, "b")

        assert worker.kinds(run_id) == [
            "run.started",
            "node.started a",
            "node.completed a",
            "node.skipped c",
            "node.started b",
            "interrupt.asked b",
            "node.waiting b",
            "run.status",
            "interrupt.answered b",
            "node.resumed b",
            "run.status",
            "node.started b",
            "node.completed b",
            "run.ended",
        ]
        events = store.events(run_id)
        assert [event.at - events[0].at for event in events[:2]] == [0, 1000]
        assert (events[-1].detail, events[7].detail, events[1].visit) == ("completed", "interrupted", 1)

    def test_events_say_what_matters(self, worker: Worker, store: Store, clock: ManualClock) -> None:
        """A question, an answer, a retry, a failure and a result are told with what they are about."""
        run_id = worker.start(shape("a b c", entries=["a", "b", "c"]))
        (question,) = worker.park(run_id, "a", reason={"sum": 5}, assignees=["ann"], expires_in=60)
        worker.answer(question, response={"fine": True}, responder="ann")
        worker.settle(worker.claim(run_id, "a").token, {"paid": 5})
        store.retry(worker.claim(run_id, "b").token, 700, failure(), None)
        worker.settle(worker.claim(run_id, "c").token, "x" * 2000)
        clock.advance(1)
        store.sweep()
        worker.fail(worker.claim(run_id, "b", attempt=2).token)

        told = [(f"{e.kind} {e.node}", e.detail, e.data) for e in store.events(run_id) if e.data or e.detail]
        reason = {"name": "ok?", "assignees": ["ann"], "reason": {"sum": 5}}
        for event in [
            ("run.started ", "g", None),
            ("node.started a", "1", None),
            ("interrupt.asked a", question.id, reason),
            ("interrupt.answered a", question.id, {"response": {"fine": True}, "responder": "ann"}),
            ("node.completed a", "", {"paid": 5}),
            ("node.retrying b", "700", {"error": "ValueError: broken"}),
            ("node.failed b", "", {"error": "ValueError: broken"}),
            ("run.ended ", "failed", None),
        ]:
            assert event in told
        # A long value isn't told: it is in the run.
        assert not [event for event in told if event[0] == "node.completed c"]

    def test_events_can_be_read_on_from_any_position(self, worker: Worker, store: Store) -> None:
        """A reader gives the last position it has and gets what came after."""
        run_id = worker.start(shape("a"))
        worker.run(run_id, "a")
        everything = store.events(run_id)

        for place, event in enumerate(everything):
            assert store.events(run_id, event.position) == everything[place + 1 :]
        assert store.events(run_id, limit=2) == everything[:2]
        assert store.events("00none", wait=5) == []

    def test_a_node_can_add_events(self, worker: Worker, store: Store) -> None:
        """What a node emits stands among the run's events, with its data."""
        run_id = worker.start(shape("a"))
        store.emit(run_id, "progress", "a", 1, {"fraction": 0.5})
        store.emit("00none", "progress", "a", 1, None)

        event = store.events(run_id)[-1]
        assert (event.kind, event.node, event.visit, event.data) == ("progress", "a", 1, {"fraction": 0.5})

    def test_a_run_keeps_its_last_events(self, worker: Worker, store: Store) -> None:
        """Old events go, some thousands stay, and their numbers go on."""
        run_id = worker.start(shape("a"))
        for number in range(11_500):
            store.emit(run_id, "progress", "a", 1, number)

        last = store.events(run_id, "11490")
        assert [event.data for event in last][-1] == 11_499
        assert int(last[-1].position) - int(last[0].position) == len(last) - 1
        first = store.events(run_id, limit=1)[0]
        assert 1 < int(first.position) <= 1_501

    def test_a_reader_can_wait_for_the_next_event(self, worker: Worker, store: Store) -> None:
        """A waiting reader gets an event as soon as there is one, and nothing when its time is over."""
        run_id = worker.start(shape("a"))
        last = store.events(run_id)[-1].position
        assert store.events(run_id, last, wait=0.01) == []
        found: list[str] = []

        def watch() -> None:
            found.extend(event.kind for event in store.events(run_id, last, wait=20))

        reader = threading.Thread(target=watch)
        reader.start()
        store.emit(run_id, "progress", "a", 1, None)
        reader.join(20)

        assert found == ["progress"]

    def test_what_is_read_is_a_copy(self, worker: Worker, store: Store) -> None:
        """Changing what was read, or what was given, changes nothing that is stored."""
        given = {"list": [1]}
        run_id = worker.start(shape("a"), given)
        given["list"].append(2)
        worker.read(run_id).task["list"].append(3)

        assert worker.read(run_id).task == {"list": [1]}
        assert worker.claim(run_id, "a").task == {"list": [1]}
        assert store.graphs() == {"g": shape("a").fingerprint}
