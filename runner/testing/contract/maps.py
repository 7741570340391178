"""The contract of maps: a node waits for its items, which are nodes made at run time."""

from __future__ import annotations

from typing import Any

from runner.definition.model import MapSpec, Topology
from runner.records.run import MapRecord, NodeRecord, Status
from runner.store.interface import Claim, Store
from runner.testing.contract.manual_worker import ManualWorker, rung, shape, word_of


def of_map(window: int | None = None, *, stops: bool = True, edges: str = "m>z", **options: Any) -> Topology:
    """Build a graph whose node `m` is a map."""
    return shape(edges, maps={"m": MapSpec("function", None, window, stops)}, **options)


class MapContract:
    """Maps and their items."""

    def _expanded(
        self, worker: ManualWorker, store: Store, graph: Topology, *items: object
    ) -> tuple[str, list[str]]:
        """Start a run, expand its map into some items, and name the doorbells."""
        run_id = worker.start(graph)
        reply = store.expand(worker.claim(run_id, "m").token, list(items))
        assert reply.word == "expanded"
        return run_id, rung(reply)

    def _map(self, worker: ManualWorker, run_id: str) -> MapRecord:
        return worker.read(run_id).maps["m"]

    def _outputs(self, store: Store, run_id: str, count: int) -> list[object]:
        return [output for _, output, _ in store.fetch(run_id, [f"m[{index}]" for index in range(count)])]

    def test_items_run_and_then_the_map_again(self, worker: ManualWorker, store: Store) -> None:
        """Every item is rung with the map's visit; when all have ended the map is rung again."""
        run_id, bells = self._expanded(worker, store, of_map(), "x", "y")

        assert bells == ["m[0].1.1", "m[1].1.1"]
        assert worker.statuses(run_id) == "executing: m waiting, m[0] ready, m[1] ready"
        claim = worker.claim(run_id, "m[1]")
        assert (claim.task, claim.inputs, claim.map) == ("y", [], None)
        assert worker.settle(claim.token, "Y") == "settled"
        worker.run(run_id, "m[0]")
        assert worker.statuses(run_id) == "executing: m ready, m[0] completed, m[1] completed"

        again = worker.claim(run_id, "m")
        assert (again.task, again.map) == ("task", MapRecord(1, 2, 2))
        assert self._outputs(store, run_id, 2) == ["m[0]", "Y"]
        assert worker.settle(again.token, ["m[0]", "Y"]) == "settled"
        assert worker.read(run_id).order == ("m",)
        assert worker.claim(run_id, "z").inputs == [("m", 1, ["m[0]", "Y"])]

    def test_no_more_items_are_at_work_than_the_window(self, worker: ManualWorker, store: Store) -> None:
        """An item begins when another one ends, and not before."""
        run_id, bells = self._expanded(worker, store, of_map(2), 0, 1, 2)

        assert bells == ["m[0].1.1", "m[1].1.1"]
        worker.run(run_id, "m[1]")
        assert worker.statuses(run_id) == "executing: m waiting, m[0] ready, m[1] completed, m[2] ready"
        assert self._map(worker, run_id) == MapRecord(1, 3, 3, active=2)

    def test_a_list_that_comes_too_late_is_no_list(self, worker: ManualWorker, store: Store) -> None:
        """A claim that has parked its map adds no items to it; the next one does."""
        run_id, token = worker.begin(of_map(), node="m")
        question = worker.question(token)
        store.park(token, [question], None)
        assert store.expand(token, ["late"]).word == "expanded"
        worker.answer(question)
        store.expand(worker.claim(run_id, "m").token, ["x", "y"])

        assert [worker.claim(run_id, f"m[{index}]").task for index in range(2)] == ["x", "y"]

    def test_an_item_that_waits_frees_its_place(self, worker: ManualWorker, store: Store) -> None:
        """Its run is interrupted only when no other item is at work; its answer goes on at once."""
        run_id, _ = self._expanded(worker, store, of_map(1), 0, 1)
        questions = worker.park(run_id, "m[0]")

        assert worker.statuses(run_id) == "executing: m waiting, m[0] waiting, m[1] ready"
        worker.run(run_id, "m[1]")
        assert worker.statuses(run_id) == "interrupted: m waiting, m[0] waiting, m[1] completed"
        worker.answer(*questions)
        assert worker.statuses(run_id) == "executing: m waiting, m[0] ready, m[1] completed"
        worker.run(run_id, "m[0]")
        assert worker.read(run_id).nodes["m"].status is Status.READY

    def test_an_answered_item_may_pass_the_window(self, worker: ManualWorker, store: Store) -> None:
        """An answer is never kept waiting for a place."""
        run_id, _ = self._expanded(worker, store, of_map(1), 0, 1)
        worker.answer(*worker.park(run_id, "m[0]"))

        assert self._map(worker, run_id) == MapRecord(1, 2, 2, active=2)

    def test_no_item_begins_while_answered_ones_fill_the_window(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """The item that ends beside an answered one leaves no place."""
        run_id, _ = self._expanded(worker, store, of_map(1), 0, 1, 2, 3)
        worker.answer(*worker.park(run_id, "m[0]"))
        worker.run(run_id, "m[1]")

        assert self._map(worker, run_id) == MapRecord(1, 4, 2, active=1)

    def test_a_failed_item_stops_its_map(self, worker: ManualWorker, store: Store) -> None:
        """Idle items are cancelled, their questions withdrawn; running ones end, then the map goes on."""
        run_id, _ = self._expanded(worker, store, of_map(3), 0, 1, 2, 3)
        worker.park(run_id, "m[0]")
        running = worker.claim(run_id, "m[1]").token
        assert worker.fail(worker.claim(run_id, "m[2]").token) == "settled"

        assert worker.statuses(run_id) == (
            "executing: m waiting, m[0] cancelled, m[1] running, m[2] failed, m[3] cancelled"
        )
        assert list(store.open_interrupts()) == []
        assert worker.settle(running, "late") == "settled"
        snapshot = worker.read(run_id)
        assert (snapshot.nodes["m"].status, snapshot.record.failed, snapshot.record.stopping) == (
            Status.READY,
            0,
            "",
        )
        assert snapshot.maps["m"] == MapRecord(1, 4, 4, failed=1, stopped=True, swept=4)

    def test_items_of_a_stopped_map_go_no_further(self, worker: ManualWorker, store: Store) -> None:
        """A running item of a map that stopped can neither ask, nor wait, nor be tried again."""
        run_id, _ = self._expanded(worker, store, of_map(), 0, 1, 2, 3)
        tokens = [worker.claim(run_id, f"m[{index}]").token for index in range(4)]
        assert worker.fail(tokens[0]) == "settled"

        assert store.ask(tokens[3], [worker.question(tokens[3])], None).word == "stopping"
        assert store.park(tokens[1], [worker.question(tokens[1])], None).word == "cancelled"
        assert store.retry(tokens[2], 0, None, None).word == "cancelled"
        assert list(store.open_interrupts()) == []
        assert worker.settle(tokens[3]) == "settled"
        assert worker.read(run_id).nodes["m"].status is Status.READY

    def test_a_map_may_go_on_without_failed_items(self, worker: ManualWorker, store: Store) -> None:
        """Where a failed item does not stop its map, the others run and the run does not fail."""
        run_id, _ = self._expanded(worker, store, of_map(1, stops=False), 0, 1)
        assert worker.fail(worker.claim(run_id, "m[0]").token) == "settled"
        worker.run(run_id, "m[1]", "m", "z")

        assert worker.statuses(run_id) == ("completed: m completed, m[0] failed, m[1] completed, z completed")

    def test_a_map_that_is_tried_again_keeps_what_is_done(self, worker: ManualWorker, store: Store) -> None:
        """Items that have completed in this visit do not run again; failed and cancelled ones do."""
        run_id, _ = self._expanded(worker, store, of_map(1), 0, 1, 2)
        worker.run(run_id, "m[0]")
        worker.fail(worker.claim(run_id, "m[1]").token)
        assert store.retry(worker.claim(run_id, "m").token, 0, {"v": 1}, None).word == "retrying"
        worker.sweep()
        again = worker.claim(run_id, "m", attempt=2)

        assert again.map == MapRecord(1, 3)
        assert rung(store.expand(again.token, None)) == ["m[1].1.2"]
        assert worker.settle(worker.claim(run_id, "m[1]", attempt=2).token) == "settled"
        worker.run(run_id, "m[2]")
        assert worker.claim(run_id, "m", attempt=2).map == MapRecord(1, 3, 3)

    def test_an_empty_map_is_ready_at_once(self, worker: ManualWorker, store: Store) -> None:
        """A map of no items waits for nothing."""
        run_id, bells = self._expanded(worker, store, of_map())

        assert bells == ["m.1.1"]
        assert worker.claim(run_id, "m").map == MapRecord(1)

    def test_a_long_list_is_begun_in_slices(self, worker: ManualWorker, store: Store) -> None:
        """No step begins more than some hundred items; time begins the rest, and a repeat changes nothing."""
        run_id, token = worker.begin(of_map(), node="m")
        bells = rung(store.expand(token, list(range(1201))))

        assert bells == [f"m[{index}].1.1" for index in range(500)]
        assert store.expand(token, list(range(1201))).word == "expanded"
        for _ in range(2):
            bells += worker.sweep()
        assert bells == [f"m[{index}].1.1" for index in range(1201)]
        assert worker.claim(run_id, "m[1200]").task == 1200
        assert self._map(worker, run_id) == MapRecord(1, 1201, 1201, active=1201)

    def test_a_stopped_map_cancels_in_slices(self, worker: ManualWorker, store: Store) -> None:
        """A stop cancels some hundred idle items at once; time cancels the rest, and then the map goes on."""
        run_id, _ = self._expanded(worker, store, of_map(), *range(700))
        worker.sweep()
        assert worker.fail(worker.claim(run_id, "m[0]").token) == "settled"

        snapshot = worker.read(run_id)
        assert (snapshot.nodes["m"].status, snapshot.nodes["m"].busy) == (Status.WAITING, True)
        assert snapshot.record.status is Status.EXECUTING
        assert worker.sweep() == ["m.1.1"]
        assert self._map(worker, run_id) == MapRecord(1, 700, 700, failed=1, stopped=True, swept=700)

    def test_cancelling_a_run_cancels_items(self, worker: ManualWorker, store: Store) -> None:
        """A run that stops cancels a map and its idle items, and ends when the last running one has."""
        run_id, _ = self._expanded(worker, store, of_map(2), 0, 1, 2)
        running = worker.claim(run_id, "m[0]").token
        store.cancel(run_id, "enough")

        assert worker.statuses(run_id) == "executing: m cancelled, m[0] running, m[1] cancelled"
        assert worker.settle(running) == "settled"
        assert worker.read(run_id).record.status is Status.CANCELLED

    def test_a_lost_item_is_run_again(self, worker: ManualWorker, store: Store) -> None:
        """An item whose worker is gone becomes ready for another one, in its place."""
        run_id, _ = self._expanded(worker, store, of_map(1), 0, 1)
        worker.claim(run_id, "m[0]")

        assert worker.sweep(after=31) == ["m[0].1.2"]
        assert self._map(worker, run_id) == MapRecord(1, 2, 1, active=1)

    def test_a_child_run_does_the_work_of_an_item(self, worker: ManualWorker, store: Store) -> None:
        """An item that is a graph is at work while its child run is, and is cancelled with it."""
        run_id, _ = self._expanded(worker, store, of_map(), 0, 1)
        child = worker.start(shape("x", name="inner"), parent=worker.claim(run_id, "m[0]").token)
        worker.fail(worker.claim(run_id, "m[1]").token)

        assert worker.read(child).record.status is Status.CANCELLED
        assert worker.statuses(run_id) == "executing: m ready, m[0] cancelled, m[1] failed"

    def test_only_the_holder_of_a_map_expands_it(self, worker: ManualWorker, store: Store) -> None:
        """A worker that lost its map can't add items to it, and a map without items can't go on with some."""
        run_id = worker.start(of_map())
        late = worker.claim(run_id, "m").token
        worker.sweep(after=31)
        again = worker.claim(run_id, "m", attempt=2).token

        assert store.expand(late, [1]).word == "stale"
        assert store.expand(again, None).word == "no_items"
        store.cancel(run_id, "enough")
        assert store.expand(again, [1]).word == "cancelled"
        assert worker.statuses(run_id) == "cancelled: m cancelled"

    def test_each_visit_has_items_of_its_own(self, worker: ManualWorker, store: Store) -> None:
        """A loop that visits a map again forgets the items of the round before."""
        graph = of_map(edges="a>m m>a m>z")
        run_id = worker.start(graph)
        worker.run(run_id, "a")
        store.expand(worker.claim(run_id, "m").token, [1, 2])
        worker.run(run_id, "m[0]", "m[1]")
        assert worker.settle(worker.claim(run_id, "m").token, edges="10") == "settled"
        assert worker.settle(worker.claim(run_id, "a", visit=2).token) == "settled"
        second = worker.claim(run_id, "m", visit=2)

        assert second.map is None
        assert rung(store.expand(second.token, ["new"])) == ["m[0].2.1"]
        claim = worker.claim(run_id, "m[0]", visit=2)
        assert claim.task == "new"
        assert word_of(store.claim(run_id, "m[1]", 1, 1, worker.nonce())) == "stale"
        assert worker.settle(claim.token) == "settled"
        assert isinstance(worker.claim(run_id, "m", visit=2), Claim)

    def test_an_item_that_was_never_made_reads_alike_in_every_round(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """In a later round of a loop, too, an item without a record reads as a node that never ran."""
        run_id = worker.start(of_map(edges="a>m m>a"))
        before = store.fetch(run_id, ["m[0]"])
        worker.run(run_id, "a")
        worker.settle(worker.claim(run_id, "m").token, [], "1")
        worker.claim(run_id, "a", 2)

        assert store.fetch(run_id, ["m[0]"]) == before == [(NodeRecord(), None, None)]
