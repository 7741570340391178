"""The contract of work that a node waits for without a worker: of a child run, map items, another system."""

from __future__ import annotations

from typing import Any

import pytest

from runner.definition import model
from runner.definition.model import MapSpec, Topology, item_id
from runner.records.run import MapRecord, NodeRecord, Status
from runner.store.interface import Claim, Start, Store, Token
from runner.store.requests import (
    AskQuestions,
    CancelRun,
    ClaimVisit,
    ConfirmHandOver,
    EmitEvent,
    ExpandMap,
    HandOver,
    HoldVisit,
    ParkVisit,
    ReleaseNodes,
    ReportResult,
    RetryVisit,
    StartRun,
)
from tests.contract.store.manual_worker import ManualWorker, rung, shape, word_of

INNER = shape("x", name="inner")


WORK = "work.1"


def of_map(
    window: int | None = None, *, stops: bool = True, edges: str = "m>z", **options: Any
) -> Topology:
    """Build a graph whose node `m` is a map."""
    return shape(edges, maps={"m": MapSpec("function", None, window, stops)}, **options)


class DelegationContract:
    """Child runs, maps and external tasks."""

    def _family(self, worker: ManualWorker) -> tuple[str, str]:
        """Start a run and, for its first node, a child run."""
        parent = worker.start("a")
        return parent, self._child(worker, worker.token(parent, "a"))

    def _child(self, worker: ManualWorker, token: Token) -> str:
        return worker.start(INNER, parent=token)

    @pytest.mark.routed
    def test_a_child_that_needs_migration_makes_its_parent_need_it(
        self, worker: ManualWorker
    ) -> None:
        """The outermost run shows it, and that it goes on when the child does."""
        parent, child = self._family(worker)
        worker.store.do(HoldVisit(worker.token(child, "x")))
        assert worker.statuses(parent) == "needs_migration: a waiting"

        worker.store.do(ReleaseNodes(child, ["x"]))

        assert worker.statuses(parent) == "executing: a waiting"
        worker.run(child, "x")
        assert worker.statuses(parent) == "executing: a ready"

    @pytest.mark.scripts
    def test_the_end_of_a_child_rings_its_parent(self, worker: ManualWorker) -> None:
        """The parent's node is ready again and gets the whole child run with its claim."""
        parent, child = self._family(worker)
        token = worker.token(child, "x")
        assert worker.settle(token, "inner result") == "settled"

        claim = worker.claim(parent, "a")

        assert claim.child == worker.read(child)
        assert claim.child.outputs == {("x", 1): "inner result"}
        assert claim.record.child == child
        worker.settle(claim.token, "outer result")
        assert worker.statuses(parent) == "completed: a completed"

    def test_a_failed_child_is_for_the_parents_node_to_judge(
        self, worker: ManualWorker
    ) -> None:
        """A child's failure fails nothing by itself: the parent's node is rung and decides."""
        parent, child = self._family(worker)
        worker.fail(worker.token(child, "x"))

        claim = worker.claim(parent, "a")
        assert claim.child is not None
        assert claim.child.record.status is Status.FAILED
        assert worker.statuses(parent) == "executing: a running"

    def test_a_cancel_goes_down(self, worker: ManualWorker, store: Store) -> None:
        """Cancelling a run cancels its children, one that executes and one that waits."""
        parent = worker.start("a b")
        waits = self._child(worker, worker.token(parent, "a"))
        runs = self._child(worker, worker.token(parent, "b"))
        worker.park(waits, "x")
        token = worker.token(runs, "x")

        store.do(CancelRun(parent, "enough"))

        assert worker.statuses(waits) == "cancelled: x cancelled"
        assert worker.statuses(parent) == "executing: a cancelled, b waiting"
        assert worker.read(runs).record.reason == "its parent run stops"
        worker.settle(token)
        assert worker.statuses(parent) == "cancelled: a cancelled, b cancelled"

    def test_a_cancel_reaches_a_node_whose_child_was_cancelled(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """A node that goes on after its child was cancelled, and asks, is cancelled with its run."""
        parent, child = self._family(worker)
        store.do(CancelRun(child, "not this one"))
        worker.park(parent, "a")

        store.do(CancelRun(parent, "enough"))

        assert worker.statuses(parent) == "cancelled: a cancelled"

    def test_a_cancel_reaches_a_node_that_no_longer_waits_for_its_child(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """A node that was released before its child is cancelled at once, not when the child ends."""
        parent, child = self._family(worker)
        store.do(HoldVisit(worker.token(child, "x")))
        store.do(ReleaseNodes(parent, ["a"]))
        store.do(ReleaseNodes(child, ["x"]))
        worker.token(child, "x")
        store.do(CancelRun(child, "not this one"))

        store.do(CancelRun(parent, "enough"))

        assert worker.statuses(parent) == "cancelled: a cancelled"
        assert worker.statuses(child) == "executing: x running"

    @pytest.mark.routed
    def test_changes_reach_all_generations(self, worker: ManualWorker, store: Store) -> None:
        """A grandchild's question and end reach the grandparent, and a cancel the grandchild."""
        top, middle = self._family(worker)
        bottom = self._child(worker, worker.token(middle, "x"))
        (question,) = worker.park(bottom, "x")
        record = worker.read(bottom).record
        assert (record.parent, record.parent_node, record.root) == (middle, "x", top)
        assert worker.statuses(top) == "interrupted: a waiting"
        worker.answer(question)
        assert worker.statuses(top) == "executing: a waiting"
        worker.run(bottom, "x")
        assert worker.statuses(middle) == "executing: x ready"

        store.do(CancelRun(top, "enough"))
        assert [worker.read(run_id).record.status for run_id in (top, middle)] == [
            Status.CANCELLED
        ] * 2

    def test_the_events_of_a_child_are_among_those_of_its_root(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """A child's events are among its root's, numbered there, with the way to their node."""
        top, middle = self._family(worker)
        bottom = self._child(worker, worker.token(middle, "x"))
        assert [worker.read(run).record.path for run in (top, middle, bottom)] == [
            "",
            "a/",
            "a/x/",
        ]
        read = store.events(top)[-1].position
        (question,) = worker.park(bottom, "x")
        worker.answer(question)
        store.do(EmitEvent(bottom, "progress", "x", 1, {"fraction": 0.5}))
        worker.run(bottom, "x")
        worker.run(middle, "x")
        worker.run(top, "a")

        events = store.events(top, read)
        assert [f"{event.kind} {event.node}".strip() for event in events] == [
            "node.started a/x/x",
            "interrupt.asked a/x/x",
            "node.waiting a/x/x",
            "run.status",
            "interrupt.answered a/x/x",
            "node.resumed a/x/x",
            "run.status",
            "progress a/x/x",
            "node.started a/x/x",
            "node.completed a/x/x",
            "node.started a/x",
            "node.completed a/x",
            "node.started a",
            "node.completed a",
            "run.ended",
        ]
        everything = store.events(top)
        assert [event.position for event in everything] == [
            str(n + 1) for n in range(len(everything))
        ]
        own = next(event for event in store.events(bottom) if event.kind == "progress")
        assert (own.node, own.data) == ("x", {"fraction": 0.5})
        assert events[7].data == {"fraction": 0.5}
        assert {event.node for event in store.events(middle)} == {"", "x"}

    def test_a_node_with_a_child_waits_for_nothing_else(self, worker: ManualWorker) -> None:
        """A question left open when a node delegates is withdrawn: no answer wakes it beside its child."""
        parent = worker.start("a")
        token = worker.token(parent, "a")
        question = worker.ask(token)
        child = self._child(worker, token)

        assert worker.answer(question) == ["superseded"]
        assert worker.statuses(parent) == "executing: a waiting"
        worker.run(child, "x")
        assert worker.statuses(parent) == "executing: a ready"

    def test_a_repeated_delegation_starts_one_child(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """A child start that is sent twice begins one child, and another worker's is stale."""
        parent = worker.start("a")
        token = worker.token(parent, "a")
        child, stale = f"{parent[:2]}child", f"{parent[:2]}stale"
        start = Start(child, "inner", None, None, parent=token)
        store.publish([INNER])

        assert rung(store.do(StartRun(start))) == ["x.1.1"]
        assert (store.do(StartRun(start)).word, store.children(parent)) == ("started", [child])
        other = Start(stale, "inner", None, None, parent=token)
        assert (store.do(StartRun(other)).word, store.read(stale)) == ("stale", None)

    def test_a_stopping_run_begins_no_child(self, worker: ManualWorker, store: Store) -> None:
        """A node that delegates after its run was stopped is cancelled."""
        parent = worker.start("a")
        token = worker.token(parent, "a")
        store.publish([INNER])
        store.do(CancelRun(parent, "enough"))

        child = f"{parent[:2]}child"
        reply = store.do(StartRun(Start(child, "inner", None, None, parent=token)))

        assert (reply.word, store.read(child)) == ("cancelled", None)
        assert worker.statuses(parent) == "cancelled: a cancelled"

    def test_a_retried_node_forgets_its_child(self, worker: ManualWorker, store: Store) -> None:
        """A retried node starts another child: its former child counts no more."""
        parent, child = self._family(worker)
        worker.fail(worker.token(child, "x"))
        token = worker.token(parent, "a")
        store.do(RetryVisit(token, 0, {"v": 1}, None))
        worker.sweep()

        claim = worker.claim(parent, "a", attempt=2)
        assert (claim.child, claim.record.child) == (None, "")
        second = self._child(worker, claim.token)
        assert store.children(parent) == [child, second]

    # -- maps: the items are nodes made at run time ----------------------------------------------------

    def _expanded(
        self, worker: ManualWorker, store: Store, graph: Topology, *items: object
    ) -> tuple[str, list[str]]:
        """Start a run, expand its map into some items, and name the doorbells."""
        run_id = worker.start(graph)
        reply = store.do(ExpandMap(worker.token(run_id, "m"), list(items)))
        assert reply.word == "expanded"
        return run_id, rung(reply)

    def _map(self, worker: ManualWorker, run_id: str) -> MapRecord:
        return worker.read(run_id).maps["m"]

    def _outputs(self, store: Store, run_id: str, count: int) -> list[object]:
        return [
            output
            for _, output, _ in store.fetch(run_id, [f"m[{index}]" for index in range(count)])
        ]

    @pytest.mark.scripts
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

    def test_no_more_items_are_at_work_than_the_window(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """An item begins when another one ends, and not before."""
        run_id, bells = self._expanded(worker, store, of_map(2), 0, 1, 2)

        assert bells == ["m[0].1.1", "m[1].1.1"]
        worker.run(run_id, "m[1]")
        assert (
            worker.statuses(run_id)
            == "executing: m waiting, m[0] ready, m[1] completed, m[2] ready"
        )
        assert self._map(worker, run_id) == MapRecord(1, 3, 3, active=2)

    @pytest.mark.parametrize(("most", "begun"), [(3, 3), (10_000, 5)])
    def test_a_map_without_a_window_has_a_bounded_number_at_work(
        self,
        worker: ManualWorker,
        store: Store,
        monkeypatch: pytest.MonkeyPatch,
        most: int,
        begun: int,
    ) -> None:
        """So a stop has few items to cancel, however long the list; control: another bound."""
        monkeypatch.setattr(model, "MOST_ITEMS", most)
        run_id, bells = self._expanded(worker, store, of_map(), *range(5))

        assert len(bells) == begun
        assert worker.end(worker.token(run_id, "m[0]")) == ["m[3].1.1"][: 5 - begun]
        assert self._map(worker, run_id).active == min(begun, 4)

    @pytest.mark.scripts
    @pytest.mark.parametrize("window", [None, 600])
    def test_the_end_of_an_item_begins_two_more(
        self, worker: ManualWorker, store: Store, window: int | None
    ) -> None:
        """Where more are left than a map has begun at once, or one that waits; a timer begins many."""
        run_id, bells = self._expanded(worker, store, of_map(window), *range(1_200))
        assert len(bells) == 500

        for index in (7, 8):
            first = 500 + 2 * (index - 7)
            rings = [f"m[{first}].1.1", f"m[{first + 1}].1.1"]
            assert worker.end(worker.token(run_id, f"m[{index}]")) == rings
        worker.park(run_id, "m[9]")
        assert self._map(worker, run_id) == MapRecord(1, 1_200, 506, active=503, waiting=1)

        worker.sweep()
        assert self._map(worker, run_id).active == (window or 1_003)

    def test_a_list_that_comes_too_late_is_no_list(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """A claim that has parked its map adds no items to it; the next one does."""
        run_id, token = worker.begin(of_map(), node="m")
        question = worker.question(token)
        store.do(ParkVisit(token, [question], None))
        assert store.do(ExpandMap(token, ["late"])).word == "expanded"
        worker.answer(question)
        store.do(ExpandMap(worker.token(run_id, "m"), ["x", "y"]))

        assert [worker.claim(run_id, f"m[{index}]").task for index in range(2)] == ["x", "y"]

    def test_an_item_that_waits_frees_its_place(
        self, worker: ManualWorker, store: Store
    ) -> None:
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

    def test_an_answered_item_may_pass_the_window(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """An answer is never kept waiting for a place."""
        run_id, _ = self._expanded(worker, store, of_map(1), 0, 1)
        worker.answer(*worker.park(run_id, "m[0]"))

        assert self._map(worker, run_id) == MapRecord(1, 2, 2, active=2)

    def test_no_item_begins_while_answered_ones_fill_the_window(
        self, worker: ManualWorker
    ) -> None:
        """The item that ends beside an answered one leaves no place."""
        run_id, _ = self._expanded(worker, worker.store, of_map(1), 0, 1, 2, 3)
        worker.answer(*worker.park(run_id, "m[0]"))
        worker.run(run_id, "m[1]")

        assert self._map(worker, run_id) == MapRecord(1, 4, 2, active=1)

    def test_a_failed_item_stops_its_map(self, worker: ManualWorker, store: Store) -> None:
        """Idle items are cancelled, their questions withdrawn; running ones end, then the map goes on."""
        run_id, _ = self._expanded(worker, store, of_map(3), 0, 1, 2, 3)
        worker.park(run_id, "m[0]")
        running = worker.token(run_id, "m[1]")
        assert worker.fail(worker.token(run_id, "m[2]")) == "settled"

        assert worker.statuses(run_id) == (
            "executing: m waiting, m[0] cancelled, m[1] running, m[2] failed, m[3] cancelled"
        )
        assert worker.open() == []
        assert worker.settle(running, "late") == "settled"
        snapshot = worker.read(run_id)
        assert (
            snapshot.nodes["m"].status,
            snapshot.record.failed,
            snapshot.record.stopping,
        ) == (
            Status.READY,
            0,
            "",
        )
        assert snapshot.maps["m"] == MapRecord(1, 4, 4, failed=1, stopped=True, swept=4)

    def test_items_of_a_stopped_map_go_no_further(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """A running item of a map that stopped can neither ask, nor wait, nor be tried again."""
        run_id, _ = self._expanded(worker, store, of_map(), 0, 1, 2, 3)
        tokens = [worker.token(run_id, f"m[{index}]") for index in range(4)]
        assert worker.fail(tokens[0]) == "settled"

        assert (
            store.do(AskQuestions(tokens[3], [worker.question(tokens[3])], None)).word
            == "stopping"
        )
        assert (
            store.do(ParkVisit(tokens[1], [worker.question(tokens[1])], None)).word
            == "cancelled"
        )
        assert store.do(RetryVisit(tokens[2], 0, None, None)).word == "cancelled"
        assert worker.open() == []
        assert worker.settle(tokens[3]) == "settled"
        assert worker.read(run_id).nodes["m"].status is Status.READY

    def test_a_map_may_go_on_without_failed_items(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """Where a failed item does not stop its map, the others run and the run does not fail."""
        run_id, _ = self._expanded(worker, store, of_map(1, stops=False), 0, 1)
        assert worker.fail(worker.token(run_id, "m[0]")) == "settled"
        worker.run(run_id, "m[1]", "m", "z")

        assert worker.statuses(run_id) == (
            "completed: m completed, m[0] failed, m[1] completed, z completed"
        )

    def test_a_map_that_is_tried_again_keeps_what_is_done(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """Items that have completed in this visit do not run again; failed and cancelled ones do."""
        run_id, _ = self._expanded(worker, store, of_map(1), 0, 1, 2)
        worker.run(run_id, "m[0]")
        worker.fail(worker.token(run_id, "m[1]"))
        assert (
            store.do(RetryVisit(worker.token(run_id, "m"), 0, {"v": 1}, None)).word
            == "retrying"
        )
        worker.sweep()
        again = worker.claim(run_id, "m", attempt=2)

        assert again.map == MapRecord(1, 3)
        assert rung(store.do(ExpandMap(again.token, None))) == ["m[1].1.2"]
        assert worker.settle(worker.token(run_id, "m[1]", attempt=2)) == "settled"
        worker.run(run_id, "m[2]")
        assert worker.claim(run_id, "m", attempt=2).map == MapRecord(1, 3, 3)

    @pytest.mark.routed
    def test_an_empty_map_is_ready_at_once(self, worker: ManualWorker, store: Store) -> None:
        """A map of no items waits for nothing."""
        run_id, bells = self._expanded(worker, store, of_map())

        assert bells == ["m.1.1"]
        assert worker.claim(run_id, "m").map == MapRecord(1)

    @pytest.mark.full
    @pytest.mark.scripts
    def test_a_long_list_is_begun_in_slices(self, worker: ManualWorker, store: Store) -> None:
        """No step begins more than some hundred items; time begins the rest, and a repeat changes nothing."""
        run_id, token = worker.begin(of_map(), node="m")
        bells = rung(store.do(ExpandMap(token, list(range(1201)))))

        assert bells == [f"m[{index}].1.1" for index in range(500)]
        assert store.do(ExpandMap(token, list(range(1201)))).word == "expanded"
        for _ in range(2):
            bells += worker.sweep()
        assert bells == [f"m[{index}].1.1" for index in range(1201)]
        for index in (0, 499, 500, 1200):
            assert worker.claim(run_id, f"m[{index}]").task == index
        assert self._map(worker, run_id) == MapRecord(1, 1201, 1201, active=1201)

    @pytest.mark.full
    def test_a_stopped_map_cancels_in_slices(self, worker: ManualWorker, store: Store) -> None:
        """A stop cancels some hundred idle items at once; time cancels the rest, and then the map goes on."""
        run_id, _ = self._expanded(worker, store, of_map(), *range(700))
        worker.sweep()
        assert worker.fail(worker.token(run_id, "m[0]")) == "settled"

        snapshot = worker.read(run_id)
        assert (snapshot.nodes["m"].status, snapshot.nodes["m"].busy) == (Status.WAITING, True)
        assert snapshot.record.status is Status.EXECUTING
        assert worker.sweep() == ["m.1.1"]
        assert self._map(worker, run_id) == MapRecord(
            1, 700, 700, failed=1, stopped=True, swept=700
        )

    def test_cancelling_a_run_cancels_items(self, worker: ManualWorker, store: Store) -> None:
        """A run that stops cancels a map and its idle items, and ends when the last running one has."""
        run_id, _ = self._expanded(worker, store, of_map(2), 0, 1, 2)
        running = worker.token(run_id, "m[0]")
        store.do(CancelRun(run_id, "enough"))

        assert worker.statuses(run_id) == "executing: m cancelled, m[0] running, m[1] cancelled"
        assert worker.settle(running) == "settled"
        assert worker.read(run_id).record.status is Status.CANCELLED

    def test_a_lost_item_is_run_again(self, worker: ManualWorker, store: Store) -> None:
        """An item whose worker is gone becomes ready for another one, in its place."""
        run_id, _ = self._expanded(worker, store, of_map(1), 0, 1)
        worker.claim(run_id, "m[0]")

        assert worker.sweep(after=31) == ["m[0].1.2"]
        assert self._map(worker, run_id) == MapRecord(1, 2, 1, active=1)

    def test_a_child_run_does_the_work_of_an_item(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """An item that is a graph is at work while its child run is, and is cancelled with it."""
        run_id, _ = self._expanded(worker, store, of_map(), 0, 1)
        child = worker.start(shape("x", name="inner"), parent=worker.token(run_id, "m[0]"))
        worker.fail(worker.token(run_id, "m[1]"))

        assert worker.read(child).record.status is Status.CANCELLED
        assert worker.statuses(run_id) == "executing: m ready, m[0] cancelled, m[1] failed"

    def test_only_the_holder_of_a_map_expands_it(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """A worker that lost its map can't add items to it, and a map without items can't go on with some."""
        run_id = worker.start(of_map())
        late = worker.token(run_id, "m")
        worker.sweep(after=31)
        again = worker.token(run_id, "m", attempt=2)

        assert store.do(ExpandMap(late, [1])).word == "stale"
        assert store.do(ExpandMap(again, None)).word == "no_items"
        store.do(CancelRun(run_id, "enough"))
        assert store.do(ExpandMap(again, [1])).word == "cancelled"
        assert worker.statuses(run_id) == "cancelled: m cancelled"

    def test_each_visit_has_items_of_its_own(self, worker: ManualWorker, store: Store) -> None:
        """A loop that visits a map again forgets the items of the round before."""
        graph = of_map(edges="a>m m>a m>z")
        run_id = worker.start(graph)
        worker.run(run_id, "a")
        store.do(ExpandMap(worker.token(run_id, "m"), [1, 2]))
        worker.run(run_id, "m[0]", "m[1]")
        assert worker.settle(worker.token(run_id, "m"), edges="10") == "settled"
        assert worker.settle(worker.token(run_id, "a", visit=2)) == "settled"
        second = worker.claim(run_id, "m", visit=2)

        assert second.map is None
        assert rung(store.do(ExpandMap(second.token, ["new"]))) == ["m[0].2.1"]
        claim = worker.claim(run_id, "m[0]", visit=2)
        assert claim.task == "new"
        assert word_of(store.do(ClaimVisit(run_id, "m[1]", 1, 1, worker.nonce()))) == "stale"
        assert worker.settle(claim.token) == "settled"
        assert isinstance(worker.claim(run_id, "m", visit=2), Claim)

    def test_an_item_that_was_never_made_reads_alike_in_every_round(
        self, worker: ManualWorker
    ) -> None:
        """In a later round of a loop, too, an item without a record reads as a node that never ran."""
        run_id = worker.start(of_map(edges="a>m m>a"))
        before = worker.store.fetch(run_id, ["m[0]"])
        worker.run(run_id, "a")
        worker.settle(worker.token(run_id, "m"), [], "1")
        worker.claim(run_id, "a", 2)

        assert worker.store.fetch(run_id, ["m[0]"]) == before == [(NodeRecord(), None, None)]

    # -- external tasks ---------------------------------------------------------------------------------

    def _hand(
        self, worker: ManualWorker, run_id: str, timeout_ms: int = 0, node: str = "a"
    ) -> Claim:
        """Claim a visit, hand its work out and note that it was sent."""
        claim = worker.claim(run_id, node)
        assert worker.store.do(HandOver(claim.token, WORK)).word == "handed"
        assert worker.store.do(ConfirmHandOver(claim.token, WORK, timeout_ms)).word == "sent"
        return claim

    @pytest.mark.scripts
    def test_a_node_waits_for_another_system_and_its_run_executes(
        self, worker: ManualWorker
    ) -> None:
        """No time rings a node whose work was sent without a timeout; the report does, and comes with it."""
        run_id = worker.start("a")
        self._hand(worker, run_id)
        assert worker.statuses(run_id) == "executing: a waiting"
        worker.clock.advance(100_000)
        assert worker.store.sweep().count == 0

        large = {"result": "x" * 100_000}
        reply = worker.store.do(ReportResult(run_id, "a", 1, WORK, large))
        assert (reply.word, rung(reply)) == ("reported", ["a.1.1"])

        claim = worker.claim(run_id, "a")
        assert claim.report == large
        assert (claim.record.handed, claim.record.late) == (WORK, False)
        assert worker.settle(claim.token, "done") == "settled"
        assert worker.statuses(run_id) == "completed: a completed"

    def test_only_the_first_report_counts(self, worker: ManualWorker, store: Store) -> None:
        """A repeated report changes nothing; one of other work, another visit or another run is refused."""
        run_id = worker.start("a")
        self._hand(worker, run_id)
        assert store.do(ReportResult(run_id, "a", 1, "other", 1)).word == "stale"
        assert store.do(ReportResult(run_id, "a", 2, WORK, 1)).word == "stale"
        assert store.do(ReportResult(run_id, "b", 1, WORK, 1)).word == "stale"
        assert store.do(ReportResult("00none", "a", 1, WORK, 1)).word == "unknown"
        assert worker.statuses(run_id) == "executing: a waiting"

        assert store.do(ReportResult(run_id, "a", 1, WORK, "first")).word == "reported"
        again = store.do(ReportResult(run_id, "a", 1, WORK, "second"))
        assert (again.word, rung(again)) == ("reported", [])
        assert worker.claim(run_id, "a").report == "first"

    def test_work_that_may_not_have_been_sent_is_sent_again(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """A worker that is lost between waiting and sending leaves a node that is rung after a lease."""
        run_id = worker.start("a")
        first = worker.claim(run_id, "a")
        store.do(HandOver(first.token, WORK))
        assert store.do(HandOver(first.token, WORK)).word == "handed"
        assert store.do(HandOver(first.token, "other")).word == "stale"
        assert worker.sweep(after=30) == ["a.1.1"]

        claim = worker.claim(run_id, "a")
        assert (claim.record.handed, claim.record.late, claim.report) == (WORK, False, None)
        assert store.do(ConfirmHandOver(first.token, WORK, 0)).word == "stale"
        assert store.do(HandOver(claim.token, WORK)).word == "handed"

    def test_a_report_that_comes_while_its_node_is_claimed_is_not_lost(
        self, worker: ManualWorker
    ) -> None:
        """A node that would wait for what was reported meanwhile goes on at once."""
        run_id = worker.start("a")
        worker.store.do(HandOver(worker.token(run_id, "a"), WORK))
        worker.sweep(after=30)
        claim = worker.claim(run_id, "a")
        reply = worker.store.do(ReportResult(run_id, "a", 1, WORK, "done"))
        assert (reply.word, rung(reply)) == ("reported", [])

        ready = worker.store.do(HandOver(claim.token, WORK))
        assert (ready.word, rung(ready)) == ("ready", ["a.1.1"])
        assert worker.store.do(HandOver(claim.token, WORK)).word == "ready"
        assert worker.claim(run_id, "a").report == "done"

    def test_work_that_takes_too_long_rings_its_node(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """After the timeout the node learns that the work is late; its next attempt knows nothing of it."""
        run_id = worker.start("a")
        self._hand(worker, run_id, timeout_ms=50_000)
        worker.clock.advance(49)
        assert store.sweep().count == 0
        assert worker.sweep(after=1) == ["a.1.1"]

        claim = worker.claim(run_id, "a")
        assert claim.record.late
        assert store.do(RetryVisit(claim.token, 0, {"v": 1}, None)).word == "retrying"
        assert store.do(ReportResult(run_id, "a", 1, WORK, "too late")).word == "stale"
        worker.sweep()
        again = worker.claim(run_id, "a", attempt=2)
        assert (again.record.handed, again.record.late, again.report) == ("", False, None)

    @pytest.mark.routed
    def test_a_cancelled_run_rings_for_who_can_revoke(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """The node ends with its run; its doorbell names the work that may stop."""
        run_id = worker.start("a b")
        self._hand(worker, run_id)
        reply = store.do(CancelRun(run_id, "enough"))
        assert "a.1.1" in rung(reply)
        assert worker.statuses(run_id) == "cancelled: a cancelled, b cancelled"

        claim = store.do(ClaimVisit(run_id, "a", 1, 1, worker.nonce()))
        assert not isinstance(claim, Claim)
        assert (claim.word, claim.reference) == ("revoked", WORK)
        assert word_of(store.do(ClaimVisit(run_id, "b", 1, 1, worker.nonce()))) == "stale"
        assert store.do(ReportResult(run_id, "a", 1, WORK, "late")).word == "stale"

    def test_a_stopping_run_hands_nothing_out(self, worker: ManualWorker, store: Store) -> None:
        """A node of a run that was stopped is cancelled where it would wait."""
        run_id = worker.start("a")
        claim = worker.claim(run_id, "a")
        store.do(CancelRun(run_id, "enough"))
        assert store.do(HandOver(claim.token, WORK)).word == "cancelled"
        assert store.do(HandOver(claim.token, WORK)).word == "stale"
        assert worker.statuses(run_id) == "cancelled: a cancelled"

    def test_an_item_of_a_map_may_wait_for_another_system(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """Its place in the map stays its own until it has ended."""
        spec = MapSpec("function", None, 1, stops=True)
        run_id = worker.start(shape("m", maps={"m": spec}))
        store.do(ExpandMap(worker.token(run_id, "m"), ["x", "y"]))
        first, second = item_id("m", 0), item_id("m", 1)
        self._hand(worker, run_id, node=first)
        assert worker.statuses(run_id) == "executing: m waiting, m[0] waiting"

        store.do(ReportResult(run_id, first, 1, WORK, "done"))
        worker.settle(worker.token(run_id, first), "done")
        worker.run(run_id, second)
        assert worker.claim(run_id, "m").map is not None
