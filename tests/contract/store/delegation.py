"""The contract of work that a node waits for without a worker: of a child run, map items, another system."""

from __future__ import annotations

from typing import Any

import pytest

from runner.definition import model
from runner.definition.model import MapSpec, Topology
from runner.records.run import MapRecord, NodeRecord, Status
from runner.store.interface import Start, Store, Token
from runner.store.requests import (
    EmitEvent,
    ExpandMap,
    StartRun,
)
from tests.contract.store.manual_worker import ManualWorker, rung, shape
from tests.contract.store.stories import INNER, Story, stories, tell


def of_map(
    window: int | None = None, *, stops: bool = True, edges: str = "m>z", **options: Any
) -> Topology:
    """Build a graph whose node `m` is a map."""
    return shape(edges, maps={"m": MapSpec("function", None, window, stops)}, **options)


STORIES = {
    "an item that waits frees its place; its answer goes on at once": (
        of_map(1),
        """
        claim m
        expand m 0 1
        claim m[0]
        park m[0]
        stands = executing: m waiting, m[0] waiting, m[1] ready
        run m[1]
        stands = interrupted: m waiting, m[0] waiting, m[1] completed
        answer m[0]
        stands = executing: m waiting, m[0] ready, m[1] completed
        run m[0]
        stands = executing: m ready, m[0] completed, m[1] completed
        """,
    ),
    "a child's failure fails nothing by itself: the parent's node is rung, and judges it": (
        "a",
        """
        claim a
        begin a
        claim a/x
        fail a/x
        rings = a.1.1
        claim a
        child a = failed
        stands = executing: a running
        """,
    ),
    "a cancel goes down to a child that waits and one that executes": (
        "a b",
        """
        claim a
        begin a
        claim b
        begin b
        claim a/x
        park a/x
        claim b/x
        cancel
        stands a/ = cancelled: x cancelled
        stands = executing: a cancelled, b waiting
        reason b/ = its parent run stops
        settle b/x
        stands = cancelled: a cancelled, b cancelled
        """,
    ),
    "a node that goes on after its child was cancelled, and asks, is cancelled with its run": (
        "a",
        """
        claim a
        begin a
        cancel a/
        claim a
        park a
        cancel
        stands = cancelled: a cancelled
        """,
    ),
    "a node that was released before its child is cancelled at once, not when the child ends": (
        "a",
        """
        claim a
        begin a
        claim a/x
        hold_visit a/x
        release_visit a
        release_visit a/x
        claim a/x
        cancel a/
        cancel
        stands = cancelled: a cancelled
        stands a/ = executing: x running
        """,
    ),
    "a question left open when a node delegates is withdrawn: no answer wakes it beside its child": (
        "a",
        """
        claim a
        ask a
        begin a
        answer a = superseded
        stands = executing: a waiting
        run a/x
        stands = executing: a ready
        """,
    ),
    "a node that delegates after its run was stopped is cancelled, and begins no child": (
        "a",
        """
        claim a
        cancel
        begin a = cancelled
        stands = cancelled: a cancelled
        """,
    ),
    "no more items of a map are at work than its window: one begins when another one ends": (
        of_map(2),
        """
        claim m
        expand m x y z
        rings = m[0].1.1 m[1].1.1
        run m[1]
        stands = executing: m waiting, m[0] ready, m[1] completed, m[2] ready
        items m = visit=1 total=3 next=3 active=2
        """,
    ),
    "a claim that has parked its map adds no items to it; the next one does": (
        of_map(),
        """
        claim m
        park m
        expand m late
        answer m
        claim m
        expand m x y
        claim m[0]
        task m[0] = x
        claim m[1]
        task m[1] = y
        """,
    ),
    "an answer to an item is never kept waiting for a place": (
        of_map(1),
        """
        claim m
        expand m x y
        claim m[0]
        park m[0]
        answer m[0]
        items m = visit=1 total=2 next=2 active=2
        """,
    ),
    "no item begins while answered ones fill the window": (
        of_map(1),
        """
        claim m
        expand m 0 1 2 3
        claim m[0]
        park m[0]
        answer m[0]
        run m[1]
        items m = visit=1 total=4 next=2 active=1
        """,
    ),
    "a failed item cancels the idle ones; those at work end, then the map goes on": (
        of_map(3),
        """
        claim m
        expand m 0 1 2 3
        claim m[0]
        park m[0]
        claim m[1]
        claim m[2]
        fail m[2]
        stands = executing: m waiting, m[0] cancelled, m[1] running, m[2] failed, m[3] cancelled
        open
        settle m[1]
        stands = executing: m ready, m[0] cancelled, m[1] completed, m[2] failed, m[3] cancelled
        items m = visit=1 total=4 next=4 failed=1 stopped=True swept=4
        """,
    ),
    "an item at work of a map that stopped can neither ask, nor wait, nor be tried again": (
        of_map(),
        """
        claim m
        expand m 0 1 2 3
        claim m[0]
        claim m[1]
        claim m[2]
        claim m[3]
        fail m[0]
        ask m[3] = stopping
        park m[1] = cancelled
        put_back m[2] = cancelled
        open
        settle m[3]
        stands = executing: m ready, m[0] failed, m[1] cancelled, m[2] cancelled, m[3] completed
        """,
    ),
    "where a failed item does not stop its map, the others run and the run does not fail": (
        of_map(1, stops=False),
        """
        claim m
        expand m x y
        claim m[0]
        fail m[0]
        run m[1] m z
        stands = completed: m completed, m[0] failed, m[1] completed, z completed
        """,
    ),
    "a map that is tried again runs what has failed or was cancelled, and not what has completed": (
        of_map(1),
        """
        claim m
        expand m x y z
        run m[0]
        claim m[1]
        fail m[1]
        claim m
        retry m
        sweep = m.1.2
        claim m.1.2
        expand_again m.1.2
        rings = m[1].1.2
        run m[1].1.2 m[2].1.1
        claim m.1.2
        items m = visit=1 total=3 next=3
        """,
    ),
    "a run that stops cancels a map and its idle items, and ends when the last at work has": (
        of_map(2),
        """
        claim m
        expand m x y z
        claim m[0]
        cancel
        stands = executing: m cancelled, m[0] running, m[1] cancelled
        settle m[0]
        stands = cancelled: m cancelled, m[0] completed, m[1] cancelled
        """,
    ),
    "an item whose worker is gone is ready for another one, in its place": (
        of_map(1),
        """
        claim m
        expand m x y
        claim m[0]
        sweep 31 = m[0].1.2
        items m = visit=1 total=2 next=1 active=1
        """,
    ),
    "an item that is a graph is cancelled with its child run": (
        of_map(),
        """
        claim m
        expand m x y
        claim m[0]
        begin m[0]
        claim m[1]
        fail m[1]
        stands m[0]/ = cancelled: x cancelled
        stands = executing: m ready, m[0] cancelled, m[1] failed
        """,
    ),
    "only the worker that has a map adds items, and a map without items can't go on with some": (
        of_map(),
        """
        claim m
        sweep 31 = m.1.2
        claim m.1.2
        expand m x = stale
        expand_again m.1.2 = no_items
        cancel
        expand m.1.2 x = cancelled
        stands = cancelled: m cancelled
        """,
    ),
    "a loop that visits a map again forgets the items of the round before": (
        of_map(edges="a>m m>a m>z"),
        """
        run a
        claim m
        expand m x y
        run m[0] m[1]
        claim m
        settle m 10
        run a.2
        claim m.2
        expand m.2 new
        rings = m[0].2.1
        claim m[1] = stale
        claim m[0].2
        task m[0].2 = new
        settle m[0].2
        claim m.2
        """,
    ),
    "the first report counts; one of other work, another visit or another run is refused": (
        "a",
        """
        claim a
        hand a
        sent a
        report a other = stale
        report a.2 = stale
        report b = stale
        report none/a = unknown
        stands = executing: a waiting
        report a work.1 first
        report a work.1 second
        rings
        claim a
        handed a = work.1: first
        """,
    ),
    "work is sent again where a worker was lost between waiting and sending": (
        "a",
        """
        claim a
        hand a
        hand a
        hand a other = stale
        sweep 30 = a.1.1
        claim a as later
        handed later = work.1: None
        sent a = stale
        hand later
        """,
    ),
    "a node that would wait for what was reported meanwhile goes on at once": (
        "a",
        """
        claim a
        hand a
        sweep 30 = a.1.1
        claim a as later
        report a
        rings
        hand later = ready
        rings = a.1.1
        hand later = ready
        claim a
        handed a = work.1: done
        """,
    ),
    "a node learns that the work is late; its next attempt knows nothing of it": (
        "a",
        """
        claim a
        hand a
        sent a 50000
        wait 49
        count_due
        sweep 1 = a.1.1
        claim a
        handed a = work.1 late: None
        retry a
        report a = stale
        sweep = a.1.2
        claim a.1.2
        handed a.1.2 = : None
        """,
    ),
    "a node of a run that was stopped is cancelled where it would hand work out": (
        "a",
        """
        claim a
        cancel
        hand a = cancelled
        hand a = stale
        stands = cancelled: a cancelled
        """,
    ),
    "an item that waits for another system keeps its place in the map until it has ended": (
        of_map(1, edges="m"),
        """
        claim m
        expand m x y
        claim m[0]
        hand m[0]
        sent m[0]
        stands = executing: m waiting, m[0] waiting
        report m[0]
        run m[0] m[1]
        claim m
        items m = visit=1 total=2 next=2
        """,
    ),
    "a node that is tried again has no child, and begins another one": (
        "a",
        """
        claim a
        begin a
        claim a/x
        fail a/x
        claim a
        retry a
        sweep = a.1.2
        claim a.1.2
        child a.1.2 = None
        begin a.1.2
        children = 2
        """,
    ),
}


ROUTED = {
    "a child that needs migration makes its parent need it, until it goes on": (
        "a",
        """
        claim a
        begin a
        claim a/x
        hold_visit a/x
        stands = needs_migration: a waiting
        release_visit a/x
        stands = executing: a waiting
        run a/x
        stands = executing: a ready
        """,
    ),
    "a grandchild's question and end reach the grandparent, and a cancel the child": (
        "a",
        """
        claim a
        begin a
        claim a/x
        begin a/x
        claim a/x/x
        park a/x/x
        stands = interrupted: a waiting
        answer a/x/x
        stands = executing: a waiting
        run a/x/x
        stands a/ = executing: x ready
        cancel
        stands = cancelled: a cancelled
        stands a/ = cancelled: x cancelled
        """,
    ),
    "no time rings a node whose work was sent without a timeout; its report does": (
        "a",
        """
        claim a
        hand a
        sent a
        stands = executing: a waiting
        wait 100000
        count_due
        report a
        rings = a.1.1
        claim a
        handed a = work.1: done
        settle a
        stands = completed: a completed
        """,
    ),
    "a cancelled run rings for who can revoke its work; no report counts any more": (
        "a b",
        """
        claim a
        hand a
        sent a
        cancel
        rings = a.1.1
        stands = cancelled: a cancelled, b cancelled
        claim a = revoked
        claim b = stale
        report a = stale
        """,
    ),
}
"""Stories of scripts, and of verbs that partitions route."""


class DelegationContract:
    """Child runs, maps and external tasks."""

    @stories(STORIES)
    def test_delegated_work_goes_on_as_its_story_says(self, worker, graph, story):
        """Child runs, items of maps and work of other systems."""
        tell(Story(worker, graph), story)

    @pytest.mark.routed
    @pytest.mark.scripts
    @stories(ROUTED)
    def test_delegated_work_goes_on_in_partitions_as_its_story_says(self, worker, graph, story):
        """Changes between generations, and what other systems report."""
        tell(Story(worker, graph), story)

    def _family(self, worker: ManualWorker) -> tuple[str, str]:
        """Start a run and, for its first node, a child run."""
        parent = worker.start("a")
        return parent, self._child(worker, worker.token(parent, "a"))

    def _child(self, worker: ManualWorker, token: Token) -> str:
        return worker.start(INNER, parent=token)

    @pytest.mark.scripts
    def test_the_end_of_a_child_rings_its_parent(self, worker):
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

    def test_the_events_of_a_child_are_among_those_of_its_root(self, worker, store):
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
        own = next(event for event in worker.events(bottom, "progress"))
        assert (own.node, own.data) == ("x", {"fraction": 0.5})
        assert events[7].data == {"fraction": 0.5}
        assert {event.node for event in store.events(middle)} == {"", "x"}

    def test_a_repeated_delegation_starts_one_child(self, worker, store):
        """A child start that is sent twice begins one child, and another worker's is stale."""
        parent, token = worker.begin("a")
        child, stale = f"{parent[:2]}child", f"{parent[:2]}stale"
        start = Start(child, "inner", None, None, parent=token)
        store.publish([INNER])

        assert rung(store.do(StartRun(start))) == ["x.1.1"]
        assert (store.do(StartRun(start)).word, store.children(parent)) == ("started", [child])
        other = Start(stale, "inner", None, None, parent=token)
        assert (store.do(StartRun(other)).word, store.read(stale)) == ("stale", None)

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
    def test_items_run_and_then_the_map_again(self, worker, store):
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

    @pytest.mark.parametrize(("most", "begun"), [(3, 3), (10_000, 5)])
    def test_a_map_without_a_window_has_a_bounded_number_at_work(
        self,
        worker,
        store,
        monkeypatch,
        most,
        begun,
    ):
        """So a stop has few items to cancel, however long the list; control: another bound."""
        monkeypatch.setattr(model, "MOST_ITEMS", most)
        run_id, bells = self._expanded(worker, store, of_map(), *range(5))

        assert len(bells) == begun
        assert worker.end(worker.token(run_id, "m[0]")) == ["m[3].1.1"][: 5 - begun]
        assert self._map(worker, run_id).active == min(begun, 4)

    @pytest.mark.scripts
    @pytest.mark.parametrize("window", [None, 600])
    def test_the_end_of_an_item_begins_two_more(self, worker, store, window):
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

    @pytest.mark.routed
    def test_an_empty_map_is_ready_at_once(self, worker, store):
        """A map of no items waits for nothing."""
        run_id, bells = self._expanded(worker, store, of_map())

        assert bells == ["m.1.1"]
        assert worker.claim(run_id, "m").map == MapRecord(1)

    @pytest.mark.full
    @pytest.mark.scripts
    def test_a_long_list_is_begun_in_slices(self, worker, store):
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
    def test_a_stopped_map_cancels_in_slices(self, worker, store):
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

    def test_an_item_that_was_never_made_reads_alike_in_every_round(self, worker):
        """In a later round of a loop, too, an item without a record reads as a node that never ran."""
        run_id = worker.start(of_map(edges="a>m m>a"))
        before = worker.store.fetch(run_id, ["m[0]"])
        worker.run(run_id, "a")
        worker.settle(worker.token(run_id, "m"), [], "1")
        worker.claim(run_id, "a", 2)

        assert worker.store.fetch(run_id, ["m[0]"]) == before == [(NodeRecord(), None, None)]

    # -- external tasks ---------------------------------------------------------------------------------
